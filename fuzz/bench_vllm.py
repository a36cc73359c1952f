"""Ops a second of processor time with the newest release of vLLM that is installed."""

from collections.abc import Sequence
from itertools import islice
from time import process_time

from kvexact.fuzz.campaign import campaign
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.items import families_of
from kvexact.fuzz.targets import find_target
from kvexact.impl.adapters.vllm.process import end_all
from kvexact.impl.adapters.vllm.targets import VllmTarget
from kvexact.impl.target import Unavailable

TARGETS = ("vllm-views", "vllm-offload", "vllm-simple")
_EXAMPLES = 40


def vllm_ops_per_s(names: Sequence[str] = TARGETS) -> dict[str, float]:
    """Ops that acted a second of both processes together, geometries included, imports not.

    Raises:
        Unavailable: no release is installed.
    """
    try:
        return {name: _ops_per_s(name) for name in names}
    finally:
        end_all()


def _ops_per_s(name: str) -> float:
    target = find_target(name)
    made = target.target_type
    assert issubclass(made, VllmTarget)
    made.check_available()
    process = made.process()
    families = families_of(made)
    counts = {family.name: Counts() for family in families}
    start = process_time() + process.cpu_seconds()
    for _ in islice(campaign(target.make, families, 0, counts), _EXAMPLES):
        pass
    spent = process_time() + process.cpu_seconds() - start
    return sum(of_family.acted for of_family in counts.values()) / spent


def vllm_or_skipped() -> tuple[dict[str, float], str]:
    """The same, and why it is empty where it is."""
    try:
        return vllm_ops_per_s(), ""
    except Unavailable as why:
        return {}, f"vLLM is skipped: {why}"
