"""A small paged cache in plain torch: a complete target to copy. docs/adapter.md explains it."""

from collections.abc import Sequence
from itertools import product
from typing import ClassVar, NamedTuple

import torch

from kvexact.impl.target import Area, Bytes, Facts, Rows, Target
from kvexact.refmodel import ops
from kvexact.refmodel.spec import Geometry, Refused

#: Bits of an element, of the page formats that this cache knows.
BITS = {
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "int8_per_token_head": 8,
    "fp8_per_token_head": 8,
    "int4_per_token_head": 4,
}


class View(NamedTuple):
    """One field of all cells, [layer, block, head, token, byte], as `torch.as_strided` takes it."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def walk(axes: str, extent: dict[str, int], step: int) -> tuple[dict[str, int], int]:
    """The stride of each axis, where the last one moves by ``step``, and the bytes of all."""
    stride = {}
    for axis in reversed(axes):
        stride[axis] = step if extent[axis] > 1 else 0
        step *= extent[axis]
    return stride, step


def place(geometry: Geometry) -> tuple[dict[str, View], int]:
    """The views of the fields by name, and the bytes of the pool."""
    (group, *groups), order = geometry.groups, geometry.order[:4]
    shape, *shapes = group.layer_sets
    if groups or shapes or group.kernel_block_size != group.block_size:
        raise Refused("unsupported", "only one layer set, and kernel blocks as large as blocks")
    if shape.side or group.tokens_per_state > 1:
        raise Refused("unsupported", "no side buffers, and a slot for each token")
    extent = {"L": shape.layers, "B": geometry.blocks, "H": shape.kv_heads, "N": group.block_size}
    bits, scale = BITS[shape.page_format], 4 * shape.page_format.endswith("per_token_head")
    key = [("k", shape.head_size_k * bits // 8), ("k_scale", scale)]
    value = [("v", shape.head_size_v * bits // 8), ("v_scale", scale)]
    page = max(order.index("L"), order.index("B")) + 1  # axes from here on lie inside a page
    fields, page_bytes = [], 0
    for half in (key, value) if geometry.kv_split else (key + value,):
        stride, half_bytes = walk(order[page:], extent, sum(width for _, width in half))
        offset = geometry.base_offset_bytes + page_bytes
        for name, width in half:
            fields.append((name, width, offset, stride))
            offset += width
        page_bytes += half_bytes
    outer, logical_bytes = walk(order[:page], extent, shape.page_bytes or page_bytes)
    views = {
        name: View((*extent.values(), width), (*[(stride | outer)[axis] for axis in extent], 1), at)
        for name, width, at, stride in fields
        if width
    }
    used, align = geometry.base_offset_bytes + logical_bytes, geometry.tail_alignment
    return views, geometry.physical_bytes or -(-used // align) * align


class ExampleCache(Target):
    """One layer set in any order, split or not; how it keeps its host tier is its own affair."""

    op_kinds = frozenset({"allocate", "free", "write_tokens", "read", "offload", "restore"})
    op_refusals = frozenset[str]()
    geometry_refusals = frozenset[str]()
    may_refuse = frozenset({"unsupported"})
    declared = frozenset[Area]({"pool"})
    families: ClassVar[tuple[str, ...] | None] = ("one_group", "padded", "batch")
    offloaded: ClassVar[tuple[str, ...]] = ("k", "k_scale", "v", "v_scale")

    @classmethod
    def fits(cls, geometry: Geometry) -> bool:
        sets = [shape for group in geometry.groups for shape in group.layer_sets]
        return all(shape.page_format in BITS for shape in sets)

    def plan(self, geometry: Geometry) -> Facts:
        views, pool_bytes = place(geometry)
        facts = {f"g0.s0.{name}.view": (v.offset, *v.strides[:-1]) for name, v in views.items()}
        return facts | {"pool.physical_bytes": pool_bytes}

    def open(self, geometry: Geometry) -> Facts:
        views, pool_bytes = place(geometry)
        self.pool = torch.zeros(pool_bytes, dtype=torch.uint8)
        self.views = {name: self.pool.as_strided(*view) for name, view in views.items()}
        self.host: dict[tuple[str, int, int], torch.Tensor] = {}
        return self.plan(geometry)

    def apply(self, op: ops.Op, rows: Rows | None) -> Rows | None:
        match op:
            case ops.Allocate(zero=True):
                for view in self.views.values():
                    view[:, list(op.blocks)] = 0
            case ops.WriteTokens():
                assert rows is not None
                row, block, token = resolve(op.slots)
                widths = [view.shape[-1] for view in self.views.values()]
                parts = torch.split(torch.tensor(rows[0])[row], widths, dim=-1)
                for view, part in zip(self.views.values(), parts, strict=True):
                    view[:, block, :, token] = part
            case ops.Read():
                row, block, token = resolve(op.slots)
                cells = torch.cat([view[:, block, :, token] for view in self.views.values()], -1)
                result = cells.new_zeros(len(op.slots), *cells.shape[1:])
                result[row] = cells
                return (result.numpy(),)
            case ops.Offload() | ops.Restore():
                moves = [move for job in op.jobs for move in job.moves]
                for move, name in product(moves, self.offloaded):
                    if name not in self.views:
                        continue
                    page = self.views[name][:, ops.block_id(move.block)]
                    key = (name, move.host_slot, move.part)
                    if isinstance(op, ops.Offload):
                        self.host[key] = page.clone()
                    else:
                        page.copy_(self.host[key])
        return None

    def view(self, area: Area) -> Bytes:
        assert area == "pool"
        return self.pool.numpy()

    def load(self, area: Area, data: Bytes) -> None:
        self.view(area)[:] = data

    def close(self) -> None:
        self.views, self.host = {}, {}


def resolve(slots: Sequence[ops.Slot | None]) -> torch.Tensor:
    """Row, block and token of every slot that is no pad."""
    used = [(row, *slot) for row, slot in enumerate(slots) if slot]
    return torch.tensor(used, dtype=torch.long).reshape(-1, 3).T


class ExampleCacheWithBug(ExampleCache):
    """Offloads the data of a page and forgets the scales that lie between them."""

    offloaded = ("k", "v")
