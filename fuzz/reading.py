"""Files from elsewhere, read with a bound: a plain file of a sane size, or one line of why not."""

from pathlib import Path

#: No file that kvexact reads is larger.
BYTES_MOST = 64 * 1024 * 1024


class UnreadableError(ValueError):
    """A file that is missing, no plain file or too large: one line that names it and the fix."""


def read_plain(path: Path, what: str) -> bytes:
    """The content of a file that is to be a ``what``, such as "trace".

    Raises:
        UnreadableError: it cannot be read.
    """
    special = path.exists() and not (path.is_file() or path.is_dir())
    if special:  # reading a pipe or a device may never end
        raise UnreadableError(f"{path}: no plain file; name a {what} file")
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MOST + 1)
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}; name a {what} file") from error
    if len(data) > BYTES_MOST:
        raise UnreadableError(f"{path}: larger than {BYTES_MOST:,} bytes; this is no {what}")
    return data
