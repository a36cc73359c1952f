"""Encoded bytes are the same everywhere: here, and with other kernels of BLAS and of numpy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from codecs_digests import digests

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "vectors" / "codecs_digests.json").read_text())


def optional_features() -> str:
    """What of this processor numpy uses beyond what it demands."""
    core = np._core._multiarray_umath
    return " ".join(name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name))


ELSEWHERE = {
    "haswell": {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"},
    "nehalem": {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": optional_features()},
}


def test_digests_here() -> None:
    assert digests() == EXPECTED


@pytest.mark.parametrize("machine", ELSEWHERE)
def test_digests_elsewhere(machine: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "codecs_digests.py")],
        env=os.environ | ELSEWHERE[machine],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == EXPECTED
