"""What a release believes about a geometry, in kvexact's names, from its own tensors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvexact.impl.adapters.vllm.driver import release
from kvexact.impl.adapters.vllm.driver.fields import Fields, address, runs
from kvexact.impl.adapters.vllm.driver.pool import Pool
from kvexact.impl.adapters.vllm.driver.shapes import Shape
from kvexact.impl.bounds import Bytes


class Map:
    """Places in the pool: allocations one after the other, as the parent sees them."""

    def __init__(self, pool: Pool) -> None:
        self._parts: list[tuple[int, int, int]] = []
        start = 0
        for storage in pool.storages:
            self._parts.append((storage.data_ptr(), storage.nbytes(), start))
            start += storage.nbytes()
        self.size = start

    def place(self, at: int) -> int:
        """Where in the pool an address is; -1 outside of it."""
        for first, size, start in self._parts:
            if first <= at < first + size:
                return start + at - first
        return -1


@dataclass(frozen=True)
class HostRows:
    """The host tier that a geometry asks for.

    Attributes:
        dense: no page is padded, so that rows of content and a release's rows are equally long.
        capacity_bytes: what a user gives a release, so that it has as many slots: where its rows
            hold padding, as much more as that takes.
    """

    dense: bool
    capacity_bytes: int

    @classmethod
    def of(cls, pool: Pool) -> "HostRows":
        host = pool.geometry["host"]
        dense = not any(layer.shape.page_bytes for layer in pool.every_layer)
        if dense:
            return cls(dense, host["capacity_bytes"])
        content = 0
        for number, group in enumerate(pool.layers):
            of_group = pool.geometry["groups"][number]
            slots = of_group["block_size"] // of_group["tokens_per_state"]
            layers = [layer.shape for shape in group for layer in shape]
            content = max(content, sum(_content(shape, slots) for shape in layers))
        align, parts = host["row_alignment"], host["chunk_blocks"]
        slots = host["capacity_bytes"] // _round_up(content * parts, align)
        return cls(dense, slots * _round_up(row_bytes(pool) * parts, align))


def row_bytes(pool: Pool) -> int:
    """Bytes of a block, padding included."""
    return logical_bytes(pool) // int(pool.kv_config.num_blocks)


def logical_bytes(pool: Pool) -> int:
    """Bytes of all blocks, as the release has configured them."""
    sizes = [tensor.size for tensor in pool.kv_config.kv_cache_tensors]
    return int(sizes[0] if release.is_one_buffer(pool.kv_config) else sum(sizes))


def _content(shape: Shape, slots: int) -> int:
    return sum(shape.fields().values()) * (1 if shape.is_state else slots * shape.kv_heads)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def pool_facts(pool: Pool, fields: Fields, places: Map) -> dict[str, Any]:
    """Sizes and views."""
    found: dict[str, Any] = {
        "pool.bytes_per_block": row_bytes(pool),
        "pool.logical_bytes": logical_bytes(pool),
        "pool.physical_bytes": places.size,
    }
    for g, group in enumerate(fields.views):
        for s, layers in enumerate(group):
            spec = pool.layers[g][s][0].spec
            found[f"g{g}.s{s}.page_bytes"] = spec.page_size_bytes
            content = release.content_bytes(spec)
            if content is not None:
                found[f"g{g}.s{s}.content_bytes"] = content
            for name in layers[0]:
                views = [layer[name] for layer in layers]
                found[f"g{g}.s{s}.{name}.view"] = _view(views, places)
    return found


def _view(layers: list[Bytes], places: Map) -> list[int]:
    """Offset, then strides over layer, kernel block, head and slot; 0 over an axis of one."""
    starts = [places.place(address(view)) for view in layers]
    steps = set(np.diff(starts).tolist()) or {0}
    layer = steps.pop() if len(steps) == 1 else -1
    first = layers[0]
    strides = [s if n > 1 else 0 for n, s in zip(first.shape[:3], first.strides[:3], strict=True)]
    return [starts[0], layer, *strides]


def region_facts(
    registered: list[tuple[int, int, int, int]], pool: Pool, places: Map
) -> list[list[int]]:
    """Regions (address, count, stride, length) in the pool, cut into the runs that they hold.

    A connector may register a whole block of many layers as one region; it is told as the runs of
    pages in it. How many bytes of a run travel is not told: that shows in the bytes. A region in
    which no page begins is told as it is.
    """
    found = set()
    every = []
    for layer in pool.every_layer:
        view = layer.view[0] if isinstance(layer.view, list) else layer.view
        if isinstance(layer.view, list) or layer.shape.is_state:
            every.append((view.data_ptr(), sum(layer.shape.fields().values())))
        else:
            every += _block_runs(view, pool.kv_config.num_blocks)
    for base, count, stride, length in registered:
        held = [(at, n) for at, n in every if base <= at < base + length]
        for at, n in held or [(base, length)]:
            found.add((places.place(at), count, stride if count > 1 else 0, n))
    return [list(region) for region in sorted(found)]


def _block_runs(view: Any, blocks: int) -> list[tuple[int, int]]:
    """The runs of one block, kernel blocks put together."""
    whole = view.view(torch.uint8)
    if view.shape[0] != blocks:
        whole = whole.unflatten(0, (blocks, view.shape[0] // blocks))
    return runs(whole.numpy())
