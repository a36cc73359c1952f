"""The process of a release: calls come in, answers and bytes go out."""

import os
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from kvexact.impl.adapters.vllm.driver import release, rows
from kvexact.impl.adapters.vllm.driver.device import SimulatedDevice
from kvexact.impl.adapters.vllm.driver.mutations import MUTATIONS
from kvexact.impl.adapters.vllm.driver.pool import Unfit
from kvexact.impl.adapters.vllm.driver.requests import VictimInUse
from kvexact.impl.adapters.vllm.driver.script import Script
from kvexact.impl.adapters.vllm.driver.session import (
    ScaleOutside,
    Session,
    connector_of,
    pool_of,
)
from kvexact.impl.adapters.vllm.driver.simple import disk_backend
from kvexact.impl.adapters.vllm.driver.standins import install
from kvexact.impl.adapters.vllm.driver.symbols import Gone
from kvexact.impl.adapters.vllm.driver.wire import Wire
from kvexact.impl.bounds import OutOfBounds

Answer = dict[str, Any]


class Server:
    """Answers calls."""

    def __init__(self, wire: Wire, mutations: list[str]) -> None:
        self._wire, self._device = wire, SimulatedDevice()
        self._traits: Answer = {}
        self._session: Session | None = None
        install(self._device)
        for name in mutations:
            if name not in MUTATIONS:
                raise Gone(f"no mend is called {name!r}; use one of {', '.join(MUTATIONS)}")
            mutation = MUTATIONS[name]
            mutation.apply(**mutation.options)
            self._traits |= mutation.traits

    def answer(self, call: dict[str, Any]) -> Answer:
        """What a call comes to; whatever it raises is told."""
        try:
            found: Answer = getattr(self, f"do_{call['do']}")(call)
        except Unfit as error:
            return {"unfit": str(error)}
        except Gone as error:
            return {"gone": str(error)}
        except Exception as error:  # noqa: BLE001 - a release may raise anything
            if _is_ours(error):
                return {"gone": f"the driver failed, {_where(error)}: {_first_line(error)}"}
            kind = "out_of_bounds" if isinstance(error, OutOfBounds) else "exception"
            return {"raised": [kind, type(error).__name__, _first_line(error)]}
        return found

    def do_traits(self, _call: dict[str, Any]) -> Answer:
        """What geometries are worth asking about, by what the release has."""
        known = release.layouts()
        orders = [*known.__members__] if known else [*release.LEGACY, *release.LEGACY_CROSS]
        formats = ("fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head")
        return {
            "orders": orders,
            "kv_split": release.splits_halves(),
            "formats": [name for name in (*formats, "int4_per_token_head") if release.knows(name)],
            "rows": rows.formats(),
            "packed_order": rows.packed_order(),
            "has_disk": disk_backend() is not None,
            "row_alignment": release.row_alignment(),
            "tail_alignment": 1,
            "specs": release.spec_names(),
            "cache_types": release.cache_types(),
        } | self._traits

    def do_fits(self, call: dict[str, Any]) -> Answer:
        """Whether the release lays a geometry out as it says."""
        connector_of(call["target"], pool_of(call))
        return {}

    def do_open(self, call: dict[str, Any]) -> Answer:
        self.do_close(call)
        self._session = Session(self._device, self._wire, call)
        if call["target"] == "views":
            self._session.check_views()
        facts = self._session.facts()
        self._session.show()
        return {
            "facts": facts,
            "size": self._session.size,
            "met": self._session.met,
            "zeroes": self._session.zeroes,
        }

    def do_apply(self, call: dict[str, Any]) -> Answer:
        return self._run(Session.apply, call)

    def do_serve(self, call: dict[str, Any]) -> Answer:
        return self._run(Session.serve, call)

    def _run(
        self, run: Callable[[Session, dict[str, Any]], Answer], call: dict[str, Any]
    ) -> Answer:
        assert self._session is not None
        try:
            return run(self._session, call)
        finally:
            self._session.show()

    def do_script(self, call: dict[str, Any]) -> Answer:
        """A trace as a program that uses vLLM alone."""
        return dict(Script(pool_of(call), call).lines())

    def do_load(self, _call: dict[str, Any]) -> Answer:
        assert self._session is not None
        self._session.load()
        return {}

    def do_close(self, _call: dict[str, Any]) -> Answer:
        if self._session is not None:
            self._session.close()
        self._session = None
        return {}


def _is_ours(error: Exception) -> bool:
    """Whether the driver itself failed, as a release is not what it takes it for."""
    code = _raised_in(error)
    told = isinstance(error, OutOfBounds | ScaleOutside | TimeoutError | VictimInUse)
    return not told and code.co_filename.startswith(str(Path(__file__).parent))


def _raised_in(error: Exception) -> CodeType:
    trace = error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code


def _where(error: Exception) -> str:
    code = _raised_in(error)
    return f"in {code.co_name} of {code.co_filename.rsplit('/vllm/', 1)[-1]}"


def _first_line(error: Exception) -> str:
    """What an exception says in one line; where it says nothing, where it was raised."""
    text = " ".join(str(error).split())[:300]
    return text or _where(error)


def serve(numbers: list[int], mutations: list[str]) -> None:
    """Answer calls until the parent closes its end."""
    os.dup2(2, 1)  # vLLM logs to standard output
    wire = Wire(*numbers)
    try:
        server = Server(wire, mutations)
        wire.answer({"version": str(release.version())})
    except Gone as error:
        wire.answer({"gone": str(error)})
        return
    except Exception as error:  # noqa: BLE001 - whatever an import raises
        wire.answer({"gone": f"{type(error).__name__}: {_first_line(error)}"})
        return
    for call in wire.calls():
        wire.answer(server.answer(call))
