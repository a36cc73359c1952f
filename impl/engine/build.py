"""Builds kernels.cu with its headers: with nvcc for a GPU, with a host compiler for the CPU device.

A library's name is a hash of all that decides its bytes, and it appears under that name at once
and complete. So processes may build the same one at the same time, and nothing is ever stale.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from kvexact.impl.target import Unavailable

SOURCE = Path(__file__).with_name("kernels.cu")

#: What kernels.cu includes, and any other source may.
HEADERS = tuple(sorted(SOURCE.parent.glob("*.cuh")))

#: GPU generations that kernels.cu is written for.
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")

# Values are encoded to the bit: each operation is rounded on its own, and subnormals are kept.
_HOST_EXACT = ("-fno-fast-math", "-ffp-contract=off")
_NVCC_EXACT = ("-fmad=false", "-ftz=false", "-prec-div=true")
_HOST_FLAGS = ("-x", "c++", "-std=c++17", "-fPIC", "-shared", *_HOST_EXACT)
_NVCC_FLAGS = ("-std=c++17", "-O3", *_NVCC_EXACT)
_COMPILE_LIMIT_S = 300


def host_library(macros: Iterable[str] = (), source: Path = SOURCE) -> Path:
    """The library for the CPU device, built unless it is there.

    With macros it is not optimised: a planted fault runs for less time than that would take.

    Raises:
        Unavailable: no host compiler, it fails, or there is no place for the library.
    """
    macros = tuple(macros)
    speed = "-O0" if macros else "-O2"
    return _library((*_host_compiler(), *_HOST_FLAGS, speed), macros, source)


def cuda_library(macros: Iterable[str] = (), source: Path = SOURCE) -> Path:
    """The library for this machine's GPU, built unless it is there.

    Raises:
        Unavailable: no nvcc, it fails, or there is no place for the library.
    """
    flags = (*_NVCC_FLAGS, "-arch=native", "-shared", "-Xcompiler", "-fPIC")
    return _library((nvcc(), *flags), tuple(macros), source)


def check_architecture(
    architecture: str, macros: Iterable[str] = (), source: Path = SOURCE
) -> None:
    """Compile for one of `ARCHITECTURES` and throw the result away; needs no GPU.

    Raises:
        Unavailable: no nvcc, or it fails.
    """
    flags = (*_NVCC_FLAGS, f"-arch={architecture}", "-Werror", "all-warnings", "-cubin")
    with tempfile.TemporaryDirectory() as folder:
        _compile((nvcc(), *flags), tuple(macros), source, Path(folder) / "kernels.cubin")


def nvcc() -> str:
    """Path of nvcc, on PATH or where CUDA_HOME or the usual place has it."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    found = shutil.which("nvcc") or shutil.which("nvcc", path=str(home / "bin"))
    if found is None:
        raise Unavailable(
            "no nvcc: install the CUDA toolkit 12.8 or newer, or set CUDA_HOME to where it is"
        )
    return found


def _host_compiler() -> tuple[str, ...]:
    chosen = os.environ.get("CXX", "").strip()
    for command in [chosen] if chosen else ["g++", "c++", "clang++"]:
        words = shlex.split(command)
        found = shutil.which(words[0])
        if found is not None:
            return (found, *words[1:])
    what = f"CXX={chosen!r} is not on PATH" if chosen else "no C++ compiler on PATH"
    raise Unavailable(
        f"{what}: install one (Debian: apt-get install g++; Fedora: dnf install gcc-c++; "
        "macOS: xcode-select --install) or set CXX"
    )


@lru_cache
def _version(compiler: str) -> bytes:
    done = subprocess.run([compiler, "--version"], capture_output=True, check=False)
    return done.stdout + done.stderr


def _library(command: tuple[str, ...], macros: tuple[str, ...], source: Path) -> Path:
    key = hashlib.sha256(_version(command[0]))
    for part in (*command, "", *macros):
        key.update(part.encode() + b"\0")
    for text in (source, *HEADERS):
        key.update(text.read_bytes())
    if "-arch=native" in command:
        # The same words mean another program beside another GPU.
        key.update(_gpu_names())
    library = _cache_folder() / f"kernels-{key.hexdigest()[:24]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            fresh = Path(folder) / library.name
            _compile(command, macros, source, fresh)
            fresh.replace(library)
    return library


@lru_cache
def _gpu_names() -> bytes:
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    if shutil.which(query[0]) is None:
        return b""
    return subprocess.run(query, capture_output=True, check=False).stdout


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "kvexact"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"cannot make {folder} for built kernels ({error}): set XDG_CACHE_HOME to a folder "
            "that can be written"
        ) from error
    return folder


def _compile(command: tuple[str, ...], macros: tuple[str, ...], source: Path, target: Path) -> None:
    defines = [f"-D{macro}" for macro in macros]
    words = [*command, *defines, f"-I{SOURCE.parent}", "-o", str(target), str(source)]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_COMPILE_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{shlex.join(words)}: {error}") from error
    if done.returncode:
        raise Unavailable(f"{shlex.join(words)} failed:\n{done.stdout}{done.stderr}")
