"""Sizes, placements and slot counts of a geometry; refusals with their reasons."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, repeat

from kvexact.refmodel.address import Placement, content_bytes, page_bytes, place
from kvexact.refmodel.demands import check_cell, check_layout, heads_outside
from kvexact.refmodel.formats import is_state, slots
from kvexact.refmodel.spec import Geometry, Group, LayerSet, Refused


@dataclass(frozen=True, slots=True)
class Plan:
    """What a geometry comes to.

    Attributes:
        placements: per group, per layer set.
        bytes_per_block: of the pool for every block, side buffers included.
        row_bytes: bytes of one row of the host tier.
        host_slots: rows of the host tier.
    """

    geometry: Geometry
    placements: tuple[tuple[Placement, ...], ...]
    bytes_per_block: int
    logical_bytes: int
    physical_bytes: int
    row_bytes: int
    host_slots: int


def plan(geometry: Geometry) -> Plan:
    """Derive everything about a geometry. Needs no memory.

    Raises:
        Refused: for the first of `GEOMETRY_REASONS` that applies.
    """
    members = [(group, layers) for group in geometry.groups for layers in group.layer_sets]
    for _, layers in members:
        check_cell(layers)
    for group, layers in members:
        check_layout(geometry, group, layers)
    for group, layers in members:
        _check_page(group, layers)
    for group, layers in members:
        _check_padding(geometry.order, group, layers)
    for side in (False, True):
        _check_overlay(geometry, side=side)
    for group in geometry.groups:
        _check_kernel_block(group)

    main, side_buffers = (_bytes_per_block(geometry, side=side) for side in (False, True))
    bytes_per_block = main + side_buffers
    placements = tuple(
        tuple(_place_group(geometry, group, main, side_buffers)) for group in geometry.groups
    )
    everywhere = [placement for of_group in placements for placement in of_group]
    for placement in everywhere:
        _check_kernel_stride(geometry.order, placement)
    for placement in everywhere:
        _check_alignment(placement)

    logical_bytes = geometry.blocks * bytes_per_block
    physical_bytes = _physical_bytes(geometry, logical_bytes)
    row_bytes, host_slots = _host_rows(geometry)
    return Plan(
        geometry, placements, bytes_per_block, logical_bytes, physical_bytes, row_bytes, host_slots
    )


def round_up(value: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is at least ``value``."""
    return -(-value // multiple) * multiple


def _check_page(group: Group, layers: LayerSet) -> None:
    content, page = content_bytes(group, layers), page_bytes(group, layers)
    if not content:
        raise Refused(
            "page",
            f"a block of {group.block_size} tokens has no slot, for {group.tokens_per_state} "
            f"tokens share one; use a block of at least {group.tokens_per_state} tokens",
        )
    if page < content:
        raise Refused(
            "page",
            f"a page of {page} bytes does not hold {layers.kv_heads} heads x "
            f"{slots(group, layers)} slots, {content} bytes; make page_bytes at least {content}",
        )


def _check_padding(order: str, group: Group, layers: LayerSet) -> None:
    padding = page_bytes(group, layers) - content_bytes(group, layers)
    if padding and layers.kv_heads > 1 and heads_outside(order):
        raise Refused(
            "padding",
            f"{order} with {layers.kv_heads} heads spreads a page, so {padding} bytes of padding "
            f"have no place at its end; drop page_bytes or keep heads inside the page",
        )


def _check_overlay(geometry: Geometry, *, side: bool) -> None:
    """In an order that starts with L, groups must agree about where block b lies.

    Runs of a group follow each other, each of them all blocks' bytes side by side. Where two
    groups' runs first differ they still start at the same byte, and there block 1 of the shorter
    run begins inside block 0 of the longer one. So as far as both lists go, they must be equal.
    """
    if geometry.order[0] != "L" or geometry.blocks == 1:
        return
    for one, other in combinations(geometry.groups, 2):
        lists = (_runs(geometry, group, side=side) for group in (one, other))
        for here, there in zip(*lists, strict=False):
            if here != there:
                raise Refused(
                    "overlay",
                    f"in {geometry.order} two groups lay blocks of {here} and {there} bytes over "
                    f"the same bytes, so one's block 1 lies in the other's block 0; "
                    f"make their pages equal or put B outermost",
                )


def _runs(geometry: Geometry, group: Group, *, side: bool) -> Iterator[int]:
    """Bytes that one block has in each run of a group, in order: of side buffers, or of others."""
    for layers in group.layer_sets:
        if layers.side == side:
            page = page_bytes(group, layers)
            heads = layers.kv_heads if geometry.order == "LHBNC" else 1
            yield from repeat(page // heads, layers.layers * heads)


def _check_kernel_block(group: Group) -> None:
    kernel = group.kernel_block_size
    if group.block_size % kernel:
        raise Refused(
            "kernel_split",
            f"a kernel block of {kernel} tokens does not divide a block of {group.block_size}; "
            f"use a divisor",
        )
    if kernel == group.block_size:
        return
    if is_state(group.layer_sets[0].page_format):
        raise Refused(
            "kernel_split",
            f"a block of {group.block_size} tokens holds one state, which kernel blocks of "
            f"{kernel} tokens would cut; use a kernel block of the whole block",
        )
    if kernel % group.tokens_per_state:
        raise Refused(
            "kernel_split",
            f"{group.tokens_per_state} tokens share a slot, which a kernel block of {kernel} "
            f"tokens cuts; use a multiple of {group.tokens_per_state}",
        )


def _bytes_per_block(geometry: Geometry, *, side: bool) -> int:
    """Bytes of every block for the largest group: of side buffers, or of other layer sets."""
    return max(
        sum(
            layers.layers * page_bytes(group, layers)
            for layers in group.layer_sets
            if layers.side == side
        )
        for group in geometry.groups
    )


def _place_group(
    geometry: Geometry, group: Group, main: int, side_buffers: int
) -> Iterator[Placement]:
    """Each layer set behind those before it; side buffers behind all blocks, on their own."""
    bytes_per_block = {False: main, True: side_buffers}
    base = geometry.base_offset_bytes
    starts = {False: base, True: base + geometry.blocks * main}
    for layers in group.layer_sets:
        side = layers.side
        yield place(geometry, group, layers, starts[side], bytes_per_block[side])
        blocks_inside = geometry.blocks if geometry.order[0] == "L" else 1
        starts[side] += layers.layers * blocks_inside * page_bytes(group, layers)


def _check_kernel_stride(order: str, placement: Placement) -> None:
    """Kernel blocks need one stride, so blocks must lie side by side, without a gap."""
    size, block_stride = placement.extents, placement.grid["B"]
    planes = size["H"] if order == "LHBNC" else 1
    dense = placement.content_bytes // planes
    if size["P"] > 1 and block_stride != dense:
        raise Refused(
            "kernel_split",
            f"{order}: blocks of {dense} bytes of content lie at a block stride of {block_stride} "
            f"bytes, so their {size['P']} kernel blocks have no one stride; "
            f"use a kernel block of the whole block, or a dense page",
        )


def _check_alignment(placement: Placement) -> None:
    for item in placement.places:
        unit = item.field.unit_bytes
        strides = item.strides | {"N": item.slot_stride(placement.extents["N"])}
        steps = [strides[axis] for axis, extent in placement.extents.items() if extent > 1]
        for distance in (item.offset, *steps):
            if distance % unit:
                raise Refused(
                    "alignment",
                    f"field {item.field.name} starts at byte {item.offset} with strides {steps}, "
                    f"but {distance} is no multiple of its {unit} bytes; "
                    f"pad to a multiple of {unit}",
                )


def _physical_bytes(geometry: Geometry, logical_bytes: int) -> int:
    if geometry.logical_bytes not in (None, logical_bytes):
        raise Refused(
            "pool_size",
            f"{geometry.logical_bytes} logical bytes are declared, but {geometry.blocks} blocks "
            f"take {logical_bytes}; declare that or nothing",
        )
    needed = geometry.base_offset_bytes + logical_bytes
    if geometry.physical_bytes is None:
        return round_up(needed, geometry.tail_alignment)
    if geometry.physical_bytes < needed:
        raise Refused(
            "pool_size",
            f"a storage of {geometry.physical_bytes} bytes does not hold a base offset of "
            f"{geometry.base_offset_bytes} and {logical_bytes} logical bytes; "
            f"make physical_bytes at least {needed}",
        )
    return geometry.physical_bytes


def _host_rows(geometry: Geometry) -> tuple[int, int]:
    """Bytes of a row and number of rows of the host tier."""
    block = max(
        sum(layers.layers * content_bytes(group, layers) for layers in group.layer_sets)
        for group in geometry.groups
    )
    host = geometry.host
    row_bytes = round_up(block * host.chunk_blocks, host.row_alignment)
    slots = host.capacity_bytes // row_bytes
    if not slots:
        raise Refused(
            "host",
            f"a capacity of {host.capacity_bytes} bytes holds no row of {row_bytes} bytes; "
            f"raise it or put fewer blocks in a chunk",
        )
    return row_bytes, slots
