"""The process of a release: calls come in, answers and bytes go out."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import numpy.typing as npt

from kvexact.impl.adapters.vllm.driver import blocks, release
from kvexact.impl.adapters.vllm.driver.facts import HostRows, Map, pool_facts
from kvexact.impl.adapters.vllm.driver.fields import Fields, outside
from kvexact.impl.adapters.vllm.driver.mutations import MUTATIONS
from kvexact.impl.adapters.vllm.driver.offload import Offload
from kvexact.impl.adapters.vllm.driver.pool import Pool, Unfit, in_configuration, lay_out
from kvexact.impl.adapters.vllm.driver.script import Script
from kvexact.impl.adapters.vllm.driver.simple import Simple
from kvexact.impl.adapters.vllm.driver.standins import Memory, OutOfBounds, install
from kvexact.impl.adapters.vllm.driver.symbols import Gone
from kvexact.impl.adapters.vllm.driver.wire import Wire

Bytes = npt.NDArray[np.uint8]
Answer = dict[str, Any]


_CONNECTORS: dict[str, Callable[[Pool, int], Offload | Simple]] = {
    "offload": Offload,
    "simple": Simple,
}


class ScaleOutside(Exception):
    """A scale view of a layer holds bytes of another layer or block."""


class Session:
    """One geometry, opened for one target."""

    def __init__(self, memory: Memory, wire: Wire, call: dict[str, Any]) -> None:
        self._memory, self._wire = memory, wire
        memory.clear()
        self._pool = _lay_out(call)
        with in_configuration(self._pool.config):
            self._pool.allocate()
        self._places = Map(self._pool)
        self._storages = [self._register(storage) for storage in self._pool.storages]
        self._fields = Fields.of(self._pool)
        self._zeroer: blocks.Zeroer | None = None
        self._dense = HostRows.of(self._pool).dense
        self._offload = _connector(call["target"], self._pool)
        if self._offload is not None:
            self._offload.register(self._pool, memory)
        self._does: dict[str, Callable[[dict[str, Any]], None]] = {
            "zero": self._zero,
            "write_tokens": self._write,
            "read": self._read,
            "copy_blocks": lambda call: blocks.copy_blocks(self._pool, call["pairs"]),
            "offload": self._move,
            "restore": self._move,
        }

    def _register(self, storage: Any) -> Bytes:
        self._memory.register(storage.data_ptr(), storage.nbytes(), "the pool")
        array = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
        return np.ctypeslib.as_array(array)

    def facts(self) -> Answer:
        """What the release believes."""
        found = pool_facts(self._pool, self._fields, self._places)
        if self._offload is not None:
            found |= self._offload.facts(self._pool, self._places, dense=self._dense)
        return found

    def check_views(self) -> None:
        """That no scale view leaves its layer's blocks.

        Raises:
            ScaleOutside: one does.
        """
        for layer in self._pool.every_layer:
            text = outside(layer)
            if text:
                raise ScaleOutside(text)

    @property
    def size(self) -> int:
        return self._places.size

    @property
    def met(self) -> list[str]:
        """What the release made of the geometry, in words."""
        return self._pool.met

    @property
    def zeroes(self) -> bool:
        """Whether the release zeroes blocks of such layers itself."""
        return bool(self._pool.kv_config.needs_kv_cache_zeroing)

    def apply(self, call: dict[str, Any]) -> None:
        """Run one op."""
        self._does[call["kind"]](call)

    def _zero(self, call: dict[str, Any]) -> None:
        """Zero blocks as the release does; where it never does, through the views of the layers."""
        if not self.zeroes:
            self._fields.zero(call["group"], call["blocks"])
            return
        if self._zeroer is None:
            self._zeroer = blocks.Zeroer(self._pool)
        self._zeroer.zero(call["blocks"], self._memory)

    def _write(self, call: dict[str, Any]) -> None:
        self._fields.write(call["group"], call["slots"], self._rows(call))

    def _read(self, call: dict[str, Any]) -> None:
        rows = self._rows(call)
        for data in rows:
            data[...] = 0
        self._fields.read(call["group"], call["slots"], rows)

    def _rows(self, call: dict[str, Any]) -> list[Bytes]:
        """Rows in shared memory, one array a layer set."""
        shapes = self._fields.row_shapes(call["group"], len(call["slots"]))
        sizes = [int(np.prod(shape)) for shape in shapes]
        whole, rows, start = self._wire.rows.take(sum(sizes)), [], 0
        for shape, size in zip(shapes, sizes, strict=True):
            rows.append(whole[start : start + size].reshape(shape))
            start += size
        return rows

    def _move(self, call: dict[str, Any]) -> None:
        assert self._offload is not None
        self._offload.move(call["jobs"], store=call["kind"] == "offload")

    def show(self) -> None:
        """Copy the pool to where the parent sees it."""
        area, start = self._wire.pool.take(self.size), 0
        for storage in self._storages:
            area[start : start + storage.size] = storage
            start += storage.size

    def load(self) -> None:
        """Take the pool over from the parent."""
        area, start = self._wire.pool.take(self.size), 0
        for storage in self._storages:
            storage[...] = area[start : start + storage.size]
            start += storage.size

    def close(self) -> None:
        """Let go of what connectors hold."""
        if self._offload is not None:
            self._offload.close()


def _lay_out(call: dict[str, Any]) -> Pool:
    prefers = call["target"] != "simple" and release.prefers_one_buffer()
    return lay_out(call["geometry"], prefers_one_buffer=prefers)


def _connector(target: str, pool: Pool) -> Offload | Simple | None:
    """The connector of a target, configured."""
    made = _CONNECTORS.get(target)
    return made(pool, HostRows.of(pool).capacity_bytes) if made else None


class Server:
    """Answers calls."""

    def __init__(self, wire: Wire, mutations: list[str]) -> None:
        self._wire, self._memory = wire, Memory()
        self._traits: Answer = {}
        self._session: Session | None = None
        install(self._memory)
        for name in mutations:
            MUTATIONS[name].apply()
            self._traits |= MUTATIONS[name].traits

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
            "row_alignment": release.row_alignment(),
            "tail_alignment": 1,
            "specs": release.spec_names(),
            "cache_types": release.cache_types(),
        } | self._traits

    def do_fits(self, call: dict[str, Any]) -> Answer:
        """Whether the release lays a geometry out as it says."""
        _connector(call["target"], _lay_out(call))
        return {}

    def do_open(self, call: dict[str, Any]) -> Answer:
        self.do_close(call)
        self._session = Session(self._memory, self._wire, call)
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
        assert self._session is not None
        try:
            self._session.apply(call)
        finally:
            self._session.show()
        return {}

    def do_script(self, call: dict[str, Any]) -> Answer:
        """A trace as a program that uses vLLM alone."""
        return dict(Script(_lay_out(call), call).lines())

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
    told = isinstance(error, OutOfBounds | ScaleOutside | TimeoutError)
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
    except Exception as error:  # noqa: BLE001 - whatever an import raises
        wire.answer({"gone": f"{type(error).__name__}: {_first_line(error)}"})
        return
    for call in wire.calls():
        wire.answer(server.answer(call))
