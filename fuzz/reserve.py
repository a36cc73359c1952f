"""Room on disk that is held back, so that what was found is still written when there is no more."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

#: Far more than a report and the files of the failures that are under way.
BYTES = 1024 * 1024
#: Errors that say that there is no more room.
FULL = (errno.ENOSPC, errno.EDQUOT)

Made = TypeVar("Made")


def allocate(path: Path, nbytes: int) -> None:
    """Make a file of at least so many bytes, or keep the one there; they have their room on disk.

    Writing there needs no more room, so a mapping of it cannot fail for want of it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    finally:
        os.close(descriptor)


class Reserve:
    """A file in a directory that is removed as soon as anything else there finds no room.

    Attributes:
        given_up: there was no room, so nothing more should be begun.
    """

    def __init__(self, directory: Path) -> None:
        """Take the room.

        Raises:
            OSError: there is not enough.
        """
        self._path = directory / ".reserve"
        self.given_up = False
        try:
            allocate(self._path, BYTES)
        except OSError:
            self.close()
            raise

    def keep(self, write: Callable[[], Made]) -> Made:
        """Do what writes files; where there is no room, once more in that of the reserve.

        Raises:
            OSError: that does not do either, or something else is wrong.
        """
        try:
            return write()
        except OSError as error:
            if error.errno not in FULL or self.given_up:
                raise
        self.given_up = True
        self.close()
        return write()

    def close(self) -> None:
        """Give the room back."""
        self._path.unlink(missing_ok=True)
