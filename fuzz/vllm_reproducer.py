"""A trace of a target of vLLM as a program that needs vLLM alone."""

from collections.abc import Iterator
from dataclasses import replace

from kvexact.fuzz.edits import Program
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.reduce import failure_of
from kvexact.fuzz.run import execute
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.trace import Trace
from kvexact.fuzz.vllm_order import is_of_order
from kvexact.impl.adapters.vllm.reproducer import Device, program, scenario
from kvexact.impl.adapters.vllm.targets import VllmTarget
from kvexact.refmodel.ops import Allocate, Claimed, Dangling, Op, bind
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import Geometry, Refused

#: Blocks that show which of them is taken for another.
_ROOM = 4


def reproducer(trace: Trace, target: NamedTarget, device: Device) -> str:
    """The program; it ends with 1 where it shows the failure.

    Raises:
        Refused: the trace is of another target, does not fail, or fails in a way that cannot be
            told with vLLM alone.
    """
    made = target.target_type
    if not issubclass(made, VllmTarget):
        raise Refused("unsupported", f"target {target.name} is no release of vLLM")
    if not trace.signature:
        raise Refused("unsupported", "it has no failure; reduce it first")
    process = made.process()
    geometry = _roomy(trace, target)
    of_order = _fails_by_order(trace, made)
    if of_order and any(not word.startswith("mend-") for word in made.mutations):
        raise Refused("unsupported", "a fence that was taken out is shown by replaying its trace")
    told = scenario(
        process,
        made.session,
        geometry,
        list(_bound(trace)),
        trace.signature,
        plan(geometry).host_slots,
        device,
        of_order=of_order,
    )
    where = "a CUDA device" if device == "cuda" else "no GPU"
    about = [
        f"vLLM {process.version}, {made.session}: {' / '.join(filter(None, trace.signature))}",
        "",
        f"Needs vLLM {process.version} on Python's path, what that imports, and {where}.",
        "Ends with 1 and says which bytes are wrong, or with 0 and 'sound'.",
    ]
    return program(about, told, made.mutations, device, of_order=of_order)


def _fails_by_order(trace: Trace, made: type[VllmTarget]) -> bool:
    """Whether it fails, and passes with all work on the device done at once."""
    found = failure_of(made(), Program(trace.geometry, trace.ops))
    return found is not None and is_of_order(*found)


def _roomy(trace: Trace, target: NamedTarget) -> Geometry:
    """The geometry; of a failure at opening one with more blocks, where that fails alike.

    A reduced one may have a single block, which nothing can be mistaken for.
    """
    geometry = trace.geometry
    if trace.ops or geometry.blocks >= _ROOM:
        return geometry
    host = replace(geometry.host, capacity_bytes=_ROOM * geometry.host.capacity_bytes)
    larger = replace(geometry, blocks=_ROOM, host=host)
    run, wrong = execute(target.make(), larger, ())
    alike = wrong and tuple(explain_failure(run, wrong).signature) == tuple(trace.signature)
    return larger if alike else geometry


def _bound(trace: Trace) -> Iterator[Op]:
    """The trace's ops with block ids in them; those that name nothing are left out."""
    claimed = Claimed()
    for op in trace.ops:
        try:
            found = bind(op, claimed)
        except Dangling:
            continue
        if isinstance(found, Allocate):
            claimed.claim(found)
        yield found
