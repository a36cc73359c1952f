"""The bytes of every field, through the views that a release gives its kernels."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kvexact.impl.adapters.vllm.driver.packed import COMPRESSED, INDEX_KEYS
from kvexact.impl.adapters.vllm.driver.pool import Layer, Pool
from kvexact.impl.bounds import Bytes

#: Of a view with halves: block, half, token, head, size.
_HALVES = 5
#: Of other views: block, head, token, content; older ones of one head have no axis for it.
_ROWS = 4


@dataclass
class Fields:
    """Fields of all layers: arrays [kernel block, head, slot, byte] over a release's own memory.

    Attributes:
        views: by group, layer set and layer, the fields in logical order.
        slots: by group, the slots of a kernel block.
        parts: by group, the kernel blocks of a block.
    """

    views: list[list[list[dict[str, Bytes]]]]
    slots: list[int]
    parts: list[int]
    widths: list[list[list[int]]] = field(default_factory=list)

    @classmethod
    def of(cls, pool: Pool) -> "Fields":
        views = [
            [[layer_fields(layer) for layer in shape] for shape in group] for group in pool.layers
        ]
        slots, parts = [], []
        for number, group in enumerate(pool.geometry["groups"]):
            state = pool.layers[number][0][0].shape.is_state
            kernel = group["kernel_block_size"] // group["tokens_per_state"]
            slots.append(1 if state else kernel)
            parts.append(group["block_size"] // group["kernel_block_size"])
        widths = [[[v.shape[-1] for v in s[0].values()] for s in group] for group in views]
        return cls(views, slots, parts, widths)

    def write(self, group: int, slots: list[list[int] | None], rows: list[Bytes]) -> None:
        """Store rows, by layer set, at slots that are no pads."""
        used, block, slot = self._places(group, slots)
        for layers, data in zip(self.views[group], rows, strict=True):
            for number, fields in enumerate(layers):
                start = 0
                for view in fields.values():
                    end = start + view.shape[-1]
                    view[block, :, slot] = data[used, number, :, start:end]
                    start = end

    def read(self, group: int, slots: list[list[int] | None], rows: list[Bytes]) -> None:
        """Gather slots into rows; pads are left alone."""
        used, block, slot = self._places(group, slots)
        for layers, data in zip(self.views[group], rows, strict=True):
            for number, fields in enumerate(layers):
                cells = np.concatenate([v[block, :, slot] for v in fields.values()], axis=-1)
                data[used, number] = cells

    def zero(self, group: int, blocks: list[int]) -> None:
        """Set all fields of blocks to 0."""
        kernel_blocks = self.kernel_blocks(group, blocks)
        for layers in self.views[group]:
            for fields in layers:
                for view in fields.values():
                    view[kernel_blocks] = 0

    def kernel_blocks(self, group: int, blocks: list[int]) -> list[int]:
        """The kernel blocks of blocks."""
        parts = self.parts[group]
        return [block * parts + part for block in blocks for part in range(parts)]

    def row_shapes(self, group: int, count: int) -> list[tuple[int, ...]]:
        """The shapes of so many rows."""
        shapes: list[tuple[int, ...]] = []
        for layers in self.views[group]:
            fields = list(layers[0].values())
            cell = sum(view.shape[-1] for view in fields)
            shapes.append((count, len(layers), fields[0].shape[1], cell))
        return shapes

    def _places(self, group: int, slots: list[list[int] | None]) -> tuple[list[int], Any, Any]:
        """Numbers of rows that are no pads, their kernel blocks, and slots in them."""
        used = [number for number, slot in enumerate(slots) if slot is not None]
        places = np.array([slot for slot in slots if slot is not None], np.intp).reshape(-1, 2)
        block = places[:, 0] * self.parts[group] + places[:, 1] // self.slots[group]
        return used, block, places[:, 1] % self.slots[group]


def layer_fields(layer: Layer) -> dict[str, Bytes]:
    """The fields of a layer: data as the backend splits its view, scales as it views them."""
    widths = layer.shape.fields()
    if layer.shape.is_state:
        return _states(layer, widths)
    if layer.shape.is_row:
        return _rows(layer, widths)
    view: torch.Tensor = layer.view
    if view.ndim == _HALVES:
        halves = [_as_bytes(view[:, half].transpose(1, 2)) for half in (0, 1)]
    else:
        content = _as_bytes(view)
        middle = content.shape[-1] // 2
        halves = [content[..., :middle], content[..., middle:]]
    found = {}
    for half, name in zip(halves, "kv", strict=True):
        if name in widths:
            found[name] = half[..., : widths[name]]
    if layer.scales is not None:
        for scales, name in zip(layer.scales, ("k_scale", "v_scale"), strict=True):
            found[name] = _as_bytes(scales.transpose(1, 2).unsqueeze(-1))
    return {name: found[name] for name in widths}


def _states(layer: Layer, widths: dict[str, int]) -> dict[str, Bytes]:
    """States, which older releases view one by one and newer ones as bytes."""
    if isinstance(layer.view, list):
        tensors = (tensor.reshape(tensor.shape[0], 1, 1, -1) for tensor in layer.view)
        return dict(zip(widths, map(_as_bytes, tensors), strict=True))
    return _in_order(_as_bytes(layer.view), widths)


def _rows(layer: Layer, widths: dict[str, int]) -> dict[str, Bytes]:
    """Rows in one piece; or in a page first all rows, then the scales of all."""
    view: torch.Tensor = layer.view
    if view.ndim < _ROWS:
        view = view.unsqueeze(1)
    elif view.shape[1] != layer.shape.kv_heads:  # once tokens came before heads
        view = view.transpose(1, 2)
    rows = _as_bytes(view)
    if layer.shape.page_format not in (INDEX_KEYS, COMPRESSED):
        return _in_order(rows, widths)
    blocks, heads, slots, _ = rows.shape
    page = rows.reshape(blocks, -1)
    assert np.shares_memory(page, rows)
    scales = slots * (sum(widths.values()) - widths["scale"])
    first = page[:, :scales].reshape(blocks, heads, slots, -1)
    found = _in_order(first, {name: width for name, width in widths.items() if name != "scale"})
    rest = page[:, scales : scales + slots * widths["scale"]]
    return found | {"scale": rest.reshape(blocks, heads, slots, -1)}


def _in_order(content: Bytes, widths: dict[str, int]) -> dict[str, Bytes]:
    """Fields that lie in a row one after the other."""
    found, start = {}, 0
    for name, width in widths.items():
        found[name] = content[..., start : start + width]
        start += width
    return found


def _as_bytes(view: torch.Tensor) -> Bytes:
    array: Bytes = view.view(torch.uint8).numpy()
    return array


def address(view: Bytes) -> int:
    """Where the first byte of a view lies."""
    found: int = view.__array_interface__["data"][0]
    return found


def outside(layer: Layer) -> str | None:
    """What of a layer's scales lies outside of the layer's own blocks; None where nothing does."""
    if layer.scales is None:
        return None
    own = _reach(_as_bytes(layer.view))
    for scales, name in zip(layer.scales, ("k_scale", "v_scale"), strict=True):
        for block, at in enumerate(_reach(_as_bytes(scales.unsqueeze(-1)))):
            if not (own[block][0] <= at[0] and at[1] <= own[block][1]):
                return f"{name} of {layer.name} leaves block {block}"
    return None


def _reach(view: Bytes) -> list[tuple[int, int]]:
    """First and last byte of each block of a view."""
    inner = sum((n - 1) * s for n, s in zip(view.shape[1:], view.strides[1:], strict=True))
    starts = [address(view) + block * view.strides[0] for block in range(view.shape[0])]
    return [(start, start + inner) for start in starts]


def runs(view: Bytes) -> list[tuple[int, int]]:
    """Maximal contiguous runs (address, length) of a view's first block."""
    found = [(address(view), 1)]
    axes = [(s, n) for s, n in zip(view.strides[1:], view.shape[1:], strict=True) if n > 1]
    for stride, extent in sorted(axes):
        if found[0][1] == stride:
            found = [(found[0][0], stride * extent)]
        else:
            found = [(at + i * stride, n) for at, n in found for i in range(extent)]
    return found
