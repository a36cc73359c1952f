"""Building the kernels: cached by content, at once or not at all; clear where impossible."""

import ctypes
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvexact.impl.engine import build, cuda
from kvexact.impl.engine.engine import CpuEngine, CudaEngine
from kvexact.impl.faults import FAULTS
from kvexact.impl.target import Unavailable


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kvexact"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.cu"
    path.write_text('extern "C" int answer() { return ANSWER; }\n')
    return path


def answer(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


def test_one_library_for_each_content(cache: Path, source: Path) -> None:
    first = build.host_library(["ANSWER=1"], source)
    assert first.parent == cache
    assert build.host_library(["ANSWER=1"], source) == first
    other = build.host_library(["ANSWER=2"], source)
    assert (answer(first), answer(other)) == (1, 2)
    source.write_text('extern "C" int answer() { return ANSWER + 10; }\n')
    assert answer(build.host_library(["ANSWER=1"], source)) == 11
    assert len(list(cache.iterdir())) == 3


def test_builds_at_the_same_time_do_no_harm(cache: Path, source: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        built = set(pool.map(lambda _: build.host_library(["ANSWER=3"], source), range(8)))
    assert [answer(library) for library in built] == [3]
    assert list(cache.iterdir()) == list(built)


def test_a_failed_build_leaves_nothing(cache: Path, source: Path) -> None:
    source.write_text("this is no C++\n")
    with pytest.raises(Unavailable, match=r"failed:\n.*error"):
        build.host_library([], source)
    assert list(cache.iterdir()) == []


def test_no_compiler_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"no C\+\+ compiler on PATH: install one .*apt-get"):
        CpuEngine.check_available()
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(Unavailable, match="CXX='no-such-compiler -m64' is not on PATH"):
        CpuEngine.check_available()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="no nvcc: install the CUDA toolkit"):
        build.nvcc()


def test_cxx_chooses_the_compiler(
    monkeypatch: pytest.MonkeyPatch, cache: Path, source: Path
) -> None:
    monkeypatch.setenv("CXX", "c++ -DANSWER=5")
    assert answer(build.host_library([], source)) == 5


def test_no_place_for_libraries_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Unavailable, match="set XDG_CACHE_HOME"):
        build.host_library()


@pytest.mark.parametrize("architecture", build.ARCHITECTURES)
def test_kernels_compile_for_gpus(architecture: str) -> None:
    try:
        build.nvcc()
    except Unavailable as reason:
        pytest.skip(f"kernels.cu was NOT compiled for {architecture}: {reason}")
    build.check_architecture(architecture)


def test_kernels_compile_without_warnings(tmp_path: Path, cache: Path) -> None:
    pragmas = '#pragma GCC diagnostic error "-Wall"\n#pragma GCC diagnostic error "-Wextra"\n'
    strict = tmp_path / "strict.cu"
    strict.write_text(pragmas + build.SOURCE.read_text())
    build.host_library([], strict)


def test_planted_macros_are_those_of_the_kernels() -> None:
    planted = [macro for fault in FAULTS.values() for macro in fault.target.macros]
    sources = "".join(path.read_text() for path in (build.SOURCE, *build.HEADERS))
    assert sorted(planted) == sorted(re.findall(r"ifdef (KVEXACT_\w+)", sources))


def test_cuda_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cuda:
        @staticmethod
        def is_available() -> bool:
            return False

    class Torch:
        cuda = Cuda

    monkeypatch.setattr(cuda, "_torch", lambda: Torch)
    with pytest.raises(Unavailable, match="needs an NVIDIA GPU"):
        CudaEngine.check_available()

    def missing() -> None:
        raise ImportError("no torch here")

    monkeypatch.setattr(cuda, "_torch", missing)
    with pytest.raises(Unavailable, match="pip install torch"):
        CudaEngine.check_available()


def test_the_cpu_engine_does_not_import_torch() -> None:
    code = "import sys, kvexact.impl.engine.engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
