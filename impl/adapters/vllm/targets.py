"""Targets of a release of vLLM: `vllm-offload`, `vllm-simple` and `vllm-views`.

Its own code groups layers, sizes the pool, makes views, registers regions and makes descriptors; a
process of the release's own runs it. A name may say which: `vllm-offload@0.25.1`, and a mend to
undo: `vllm-simple@0.29.0+undo-54021`. Without one it is the newest that is installed. `+bytes`
tells sizes only, with `+at-once` nothing is pending on the device.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Self

import numpy as np

from kvexact.impl.adapters.vllm.answers import answer_of, tuples
from kvexact.impl.adapters.vllm.home import LISTED, Home
from kvexact.impl.adapters.vllm.known import AT_ONCE, BY_BYTES
from kvexact.impl.adapters.vllm.process import Process, Unfit, process_of
from kvexact.impl.adapters.vllm.published import cell_bytes, publishes
from kvexact.impl.target import Area, Bytes, Facts, FreeBytes, Result, Rows, Target
from kvexact.refmodel import ops
from kvexact.refmodel.ops import KIND_OF, SERVING_OPS
from kvexact.refmodel.spec import Geometry, Refused

_FITS_KEPT = 4096

_FAMILIES = (
    *("served", "served_groups", "served_hybrid"),
    *("served_latent", "served_sparse", "served_packed"),
)
#: What `launches` says of a geometry that was zeroed.
ZEROED_BY_TABLE, ZEROED_BY_VIEWS = "zeroed by a table of addresses", "zeroed through views"
_WHOLE_BLOCKS = "a block that is packed, or that several groups may own, is moved as a whole"


class VllmTarget(Target):
    """What all of them share: the pool through the release's own views."""

    op_kinds = frozenset({"allocate", "free", "write_tokens", "read", "zero", "reset"})
    op_refusals = frozenset[str]()
    geometry_refusals = frozenset[str]()
    may_refuse = frozenset({"unsupported"})
    declared = frozenset[Area]({"pool"})
    families: ClassVar[tuple[str, ...] | None] = _FAMILIES
    copies_slots = False
    #: Ops of releases that have a function for it: where, and its name.
    optional: ClassVar[dict[str, tuple[str, str]]] = {
        "copy_blocks": ("v1/worker/utils.py", "def copy_kv_cache_blocks_inplace("),
    }

    release: ClassVar[str] = ""
    mutations: ClassVar[tuple[str, ...]] = ()
    #: Tell sizes only, so that wrong views and regions show in bytes, and what is behind them too.
    by_bytes: ClassVar[bool] = False
    told_with_bytes: ClassVar[tuple[str, ...]] = ("_bytes", "bytes_per_block", "_slots")
    #: Nothing is ever pending on the device.
    at_once: ClassVar[bool] = False
    #: Which of the driver's sessions.
    session: ClassVar[str]
    _fits: ClassVar[dict[Geometry, bool]]
    #: What was met of the geometry; nothing where it was never sent.
    _met = frozenset[str]()

    def __init_subclass__(cls) -> None:
        cls._fits = {}

    @classmethod
    def variant(cls, text: str) -> type[Self]:
        """The same of a release: "0.29.0", "0.29.0+undo-54021", "0.29.0+bytes+at-once"."""
        release, *more = text.split("+")
        mutations = [word for word in more if word not in (BY_BYTES, AT_ONCE)]
        source = Home.default().release(release) / "vllm"
        lacking = {
            kind
            for kind, (place, wanted) in cls.optional.items()
            if (source / place).is_file() and wanted not in (source / place).read_text()
        }
        members = {
            "release": release,
            "mutations": tuple(mutations),
            "by_bytes": BY_BYTES in more,
            "at_once": AT_ONCE in more,
            "op_kinds": cls.op_kinds - lacking,
            "__module__": cls.__module__,
            "__doc__": cls.__doc__,
        }
        return type(cls.__name__, (cls,), members)

    @classmethod
    def all_at_once(cls) -> type[Self]:
        """The same, with nothing pending on the device."""
        return type(cls.__name__, (cls,), {"at_once": True, "__module__": cls.__module__})

    @classmethod
    def check_available(cls) -> None:
        Home.default().check(cls._release())

    @classmethod
    def remark(cls) -> str:
        """See `Target`; of a release that nobody has tried, as which it is driven."""
        release = cls._release()
        listed = release in LISTED
        return "" if listed else f"{release} is not listed, and driven as {LISTED[-1]}"

    @classmethod
    def _release(cls) -> str:
        if cls.release:
            return cls.release
        installed = Home.default().releases()
        return installed[-1] if installed else ""

    @classmethod
    def process(cls) -> Process:
        """The release's process."""
        return process_of(cls._release(), cls.mutations)

    @classmethod
    def ask_traits(cls) -> dict[str, Any]:
        """What the release has, as its process told."""
        process = cls.process()
        if not process.traits:
            process.traits = process.ask("traits")
        return process.traits

    @classmethod
    def fits(cls, geometry: Geometry) -> bool:
        """Whether the release lays this geometry out as it says, by its own resolution."""
        if not cls._is_published(geometry):
            return False
        if geometry not in cls._fits:
            if len(cls._fits) > _FITS_KEPT:
                cls._fits.clear()
            try:
                cls.process().ask("fits", target=cls.session, geometry=asdict(geometry))
                cls._fits[geometry] = True
            except Unfit:
                cls._fits[geometry] = False
        return cls._fits[geometry]

    @classmethod
    def _is_published(cls, geometry: Geometry) -> bool:
        traits = cls.ask_traits()
        return publishes(geometry, traits) and cls._host_fits(geometry, traits)

    @classmethod
    def _host_fits(cls, geometry: Geometry, _traits: dict[str, Any]) -> bool:
        return geometry.host.chunk_blocks == 1

    def plan(self, geometry: Geometry) -> Facts:
        """See `Target`; a release knows nothing without memory."""
        facts = self.open(geometry)
        self.close()
        return facts

    def open(self, geometry: Geometry) -> Facts:
        """See `Target`."""
        self._met = frozenset()
        if not self._is_published(geometry):
            raise Refused("unsupported", "no release publishes such layers")
        try:
            answer = self.process().ask(
                "open", target=self.session, geometry=asdict(geometry), at_once=self.at_once
            )
        except Unfit as error:
            raise Refused("unsupported", str(error)) from error
        self._size: int = answer["size"]
        self._met = frozenset(answer["met"])
        self._zeroes = ZEROED_BY_TABLE if answer["zeroes"] else ZEROED_BY_VIEWS
        self._shapes = [
            [(shape.layers, shape.kv_heads, cell_bytes(shape)) for shape in group.layer_sets]
            for group in geometry.groups
        ]
        told = self.told_with_bytes if self.by_bytes else ("",)
        facts = answer["facts"].items()
        return {name: tuples(value) for name, value in facts if name.endswith(told)}

    def apply(self, op: ops.Op, rows: Rows | None) -> Result:
        """See `Target`."""
        process = self.process()
        match op:
            case ops.Allocate(group=group, blocks=blocks, zero=True):
                self._zero(group, blocks)
            case ops.Zero(group=group, blocks=blocks):
                self._zero(group, blocks)
            case ops.WriteTokens(group=group, slots=slots):
                assert rows is not None
                self._put(rows)
                process.ask("apply", kind="write_tokens", group=group, slots=slots)
            case ops.Read(group=group, slots=slots):
                process.ask("apply", kind="read", group=group, slots=slots)
                return self._rows(group, len(slots))
            case ops.CopyBlocks(pairs=pairs):
                process.ask("apply", kind="copy_blocks", pairs=pairs)
            case ops.Offload(id=number, jobs=jobs):
                process.ask("apply", kind="offload", id=number, jobs=jobs)
            case ops.Restore(id=number, jobs=jobs):
                process.ask("apply", kind="restore", id=number, jobs=jobs)
        return None

    def _zero(self, group: int, blocks: tuple[ops.Block, ...]) -> None:
        self._met |= {self._zeroes}
        self.process().ask("apply", kind="zero", group=group, blocks=blocks)

    def _put(self, rows: Rows) -> None:
        whole, start = self.process().rows.take(sum(array.size for array in rows)), 0
        for array in rows:
            whole[start : start + array.size] = array.reshape(-1)
            start += array.size

    def _rows_of_all(self, count: int) -> Rows:
        return self._taken([(count, *shape) for group in self._shapes for shape in group])

    def _rows(self, group: int, count: int) -> Rows:
        return self._taken([(count, *shape) for shape in self._shapes[group]])

    def _taken(self, shapes: list[tuple[int, ...]]) -> Rows:
        """Rows from shared memory, one array of a shape after the other."""
        sizes = [int(np.prod(shape)) for shape in shapes]
        whole, start, rows = self.process().rows.take(sum(sizes)), 0, []
        for shape, size in zip(shapes, sizes, strict=True):
            rows.append(whole[start : start + size].reshape(shape).copy())
            start += size
        return tuple(rows)

    def launches(self) -> Mapping[str, int]:
        """See `Target`; of a release what it made of the geometry, and its ways to zero."""
        return dict.fromkeys(sorted(self._met), 1)

    def view(self, area: Area) -> Bytes:
        """See `Target`; as it was after the last op."""
        assert area == "pool"
        return self.process().pool.take(self._size)

    def load(self, area: Area, data: Bytes) -> None:
        """See `Target`."""
        self.view(area)[:] = data
        self.process().ask("load")

    def close(self) -> None:
        """See `Target`."""
        if self.process().alive:
            self.process().ask("close")


class VllmViews(VllmTarget):
    """Allocation, views of every layer and its scales, zeroing, block copy."""

    session = "views"
    op_kinds = VllmTarget.op_kinds | {"copy_blocks"}
    free: ClassVar[tuple[FreeBytes, ...]] = (
        FreeBytes("copy_blocks", "block_padding", _WHOLE_BLOCKS),
        FreeBytes("zero", "block_padding", _WHOLE_BLOCKS),
        FreeBytes("allocate", "block_padding", _WHOLE_BLOCKS),
    )


class VllmOffload(VllmViews):
    """The offloading connector, registered, and its transfer workers."""

    session = "offload"
    op_kinds = VllmViews.op_kinds | {"offload", "restore", "evict"} | SERVING_OPS.keys()
    families: ClassVar[tuple[str, ...] | None] = (*_FAMILIES, "served_chunked", "served_requests")
    free: ClassVar[tuple[FreeBytes, ...]] = (
        *VllmViews.free,
        FreeBytes("restore", "block_padding", _WHOLE_BLOCKS),
        FreeBytes("admit", "block_padding", _WHOLE_BLOCKS),
        FreeBytes("readmit", "block_padding", _WHOLE_BLOCKS),
    )

    def apply(self, op: ops.Op, rows: Rows | None) -> Result:
        """See `Target`; requests are followed by the release's own manager of the host tier."""
        kind = KIND_OF[type(op)]
        if kind not in SERVING_OPS:
            return super().apply(op, rows)
        if rows is not None:
            self._put(rows)
        told = self.process().ask("serve", kind=kind, **asdict(op))
        return self._rows_of_all(told["count"]) if kind == "attend" else answer_of(told)

    @classmethod
    def _host_fits(cls, geometry: Geometry, traits: dict[str, Any]) -> bool:
        alignment: int = traits["row_alignment"]
        return geometry.host.row_alignment == alignment


class VllmSimple(VllmViews):
    """The simple CPU offload: regions, slots of scheduler and worker, its copy backend."""

    session = "simple"
    op_kinds = VllmViews.op_kinds | {"offload", "restore", "evict"}
    free: ClassVar[tuple[FreeBytes, ...]] = (
        *VllmViews.free,
        FreeBytes("restore", "block_padding", _WHOLE_BLOCKS),
    )

    @classmethod
    def _host_fits(cls, geometry: Geometry, _traits: dict[str, Any]) -> bool:
        return geometry.host.row_alignment == 1 and geometry.host.chunk_blocks == 1
