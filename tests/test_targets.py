"""Code of a target around its ops: importing it, making it, what it prints."""

import os
import subprocess
import sys
import time
from contextlib import closing
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvexact.fuzz.cli import main
from kvexact.fuzz.isolate import Isolation
from kvexact.fuzz.run import execute
from kvexact.fuzz.self_check import _OPS
from kvexact.fuzz.self_check_copy import GEOMETRY as _GEOMETRY
from kvexact.fuzz.targets import find_target

KVEXACT = str(Path(sys.executable).with_name("kvexact"))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("leaves", "import os; os._exit(0)", "ends the process that imports it (exit status 0)"),
        ("crashes", "import ctypes; ctypes.string_at(0)", "ends the process"),
        ("interrupts", "raise KeyboardInterrupt", "(SIGINT)"),
        ("exits", "raise SystemExit(3)", "cannot be imported (SystemExit: 3)"),
        ("raises", "raise OSError('no\\nroom')", "cannot be imported (OSError: no room)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(name: str, code: str, words: str) -> None:
    Path(f"kv_{name}.py").write_text(code)
    result = CliRunner().invoke(main, ["fuzz", "--target", f"kv_{name}:Target"])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"kvexact: target 'kv_{name}:Target' cannot be imported")
    assert words in result.stderr
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", "kvexact.fuzz", f"--kv-target=kv_{name}:T"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == pytest.ExitCode.USAGE_ERROR
    assert words in told.stderr


def test_a_module_that_never_ends_its_import_ends_with_the_command() -> None:
    code = "import os, time, pathlib; pathlib.Path('pid').write_text(f'{os.getpid()}.')"
    Path("kv_sleeps.py").write_text(f"{code}\ntime.sleep(60)\n")
    command = subprocess.Popen([KVEXACT, "fuzz", "--target", "kv_sleeps:Target"])
    pid = Path("pid")
    while not (pid.exists() and pid.read_text().endswith(".")):
        time.sleep(0.01)
    life = os.pidfd_open(int(pid.read_text()[:-1]))
    command.kill()
    command.wait()
    try:
        assert wait([life], 30) == [life]
    finally:
        os.close(life)


TALKS = """
import ctypes, os
from kvexact.impl.engine.engine import CpuEngine
print("imported")
ctypes.CDLL(None).puts(b"imported by another language")

class Talks(CpuEngine):
    @classmethod
    def check_available(cls):
        os.write(1, b"checked by number\\n")

    def __init__(self):
        super().__init__()
        print("made")

    def apply(self, op, rows):
        print("applied")
        os.write(1, b"by number\\n")
        return super().apply(op, rows)
"""


def test_what_a_target_prints_is_no_output_of_a_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("kv_talks.py").write_text(TALKS)
    with closing(Isolation(find_target("kv_talks:Talks"))) as isolation:
        assert execute(isolation.make(), _GEOMETRY, _OPS)[1] is None
    output, errors = capfd.readouterr()
    assert output == ""
    assert {"imported", "made", "applied", "by number"} <= set(errors.split("\n"))


def test_what_a_target_prints_in_the_process_of_a_command_is_none_of_its_output() -> None:
    Path("kv_talks.py").write_text(TALKS)
    CliRunner().invoke(main, ["vectors", "write", "--out", "vectors"])
    told = subprocess.run(
        [KVEXACT, "vectors", "check", "vectors", "--target", "kv_talks:Talks"],
        capture_output=True,
        text=True,
        check=False,
    )
    said = {"imported", "imported by another language", "checked by number", "by number"}
    assert said <= set(told.stderr.split("\n"))
    assert told.stdout.startswith("agree: ")
    assert told.stdout.count("\n") == 1


@pytest.mark.parametrize("target", ["x" * 100_000, "x:" + "y" * 100_000])
def test_a_long_name_is_not_shown_whole(target: str) -> None:
    result = CliRunner().invoke(main, ["fuzz", "--target", target])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 2500
