"""Whose the bytes of a pool and of a host row are: runs in address order, as plain data.

A pool is shown in *bands*, stretches of neighbouring bytes: one for each layer (and head, where
heads lie outside of blocks) in orders that start with L, else one for each block. Groups overlay
each other, so each of them has runs of its own over the same band.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvexact.refmodel.facts import page_runs
from kvexact.refmodel.plan import Plan

Kind = Literal["content", "padding", "unused", "base", "tail"]


class Piece(NamedTuple):
    """A contiguous part of one layer's page, at the same place in every block.

    Attributes:
        head: the head that it holds; 0 where it holds all of them.
        start: bytes from the storage's start, in block 0.
        content_bytes: its content.
        padding_bytes: padding that follows it.
        block_stride: bytes from one block's piece to the next block's.
    """

    group: int
    layer_set: int
    layer: int
    head: int
    start: int
    content_bytes: int
    padding_bytes: int
    block_stride: int


class Run(NamedTuple):
    """Neighbouring bytes of one owner; what belongs to no page has neither piece nor block."""

    start: int
    length: int
    kind: Kind
    piece: Piece | None = None
    block: int | None = None

    @property
    def end(self) -> int:
        return self.start + self.length


class HostRun(NamedTuple):
    """Neighbouring bytes of a host row, counted from the row's start."""

    start: int
    length: int
    kind: Kind
    layer_set: int = 0
    layer: int = 0
    part: int = 0

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Stretch:
    """Blocks side by side: those of the pool, or those of its side buffers behind them.

    Attributes:
        start: bytes from the storage's start.
        block_bytes: bytes of every block, whoever owns it.
        blocks: how many there are.
        pieces: per group, in address order.
        by_layer: True where a band is one piece in all blocks, False where it is one whole block.
        side: True for side buffers.
    """

    start: int
    block_bytes: int
    blocks: int
    pieces: tuple[tuple[Piece, ...], ...]
    by_layer: bool
    side: bool

    @property
    def lead(self) -> int:
        """The group with the most pieces; its pieces number and divide the bands."""
        return max(range(len(self.pieces)), key=lambda group: len(self.pieces[group]))

    @property
    def bands(self) -> int:
        return len(self.pieces[self.lead]) if self.by_layer else self.blocks

    def extent(self, band: int) -> tuple[int, int]:
        """First byte of a band, and the byte after its last."""
        if self.by_layer:
            piece = self.pieces[self.lead][band]
            return piece.start, piece.start + self.blocks * piece.block_stride
        start = self.start + band * self.block_bytes
        return start, start + self.block_bytes

    def starts(self, band: int) -> Sequence[int]:
        """Where the lead group's items of a band start: blocks of a layer, or pieces of a block."""
        if self.by_layer:
            start, end = self.extent(band)
            return range(start, end, self.pieces[self.lead][band].block_stride)
        return [piece.start + band * piece.block_stride for piece in self.pieces[self.lead]]

    def page_runs(self, group: int, band: int, low: int, high: int) -> Iterator[Run]:
        """A group's runs of pages that may meet [low, high) of a band, in address order."""
        if not self.by_layer:
            pieces, blocks = self.pieces[group], range(band, band + 1)
        else:
            pieces = self.pieces[group][band : band + 1]
            stride = self.pieces[self.lead][band].block_stride
            start, _ = self.extent(band)
            blocks = range((low - start) // stride, -(-(high - start) // stride))
        for piece in pieces:
            for block in blocks:
                start = piece.start + block * piece.block_stride
                yield Run(start, piece.content_bytes, "content", piece, block)
                end = start + piece.content_bytes
                yield Run(end, piece.padding_bytes, "padding", piece, block)


@dataclass(frozen=True, slots=True)
class PoolMap:
    """The bytes of one pool.

    Attributes:
        planned: the geometry and its sizes.
        stretches: the blocks, then their side buffers; what has no bytes is left out.
    """

    planned: Plan
    stretches: tuple[Stretch, ...]

    @property
    def groups(self) -> int:
        return len(self.planned.geometry.groups)

    @property
    def by_layer(self) -> bool:
        """Whether a band is a piece of a page in all blocks, and not one whole block."""
        return self.stretches[0].by_layer

    @property
    def bands(self) -> int:
        return sum(stretch.bands for stretch in self.stretches)

    @property
    def base(self) -> Run:
        return Run(0, self.planned.geometry.base_offset_bytes, "base")

    @property
    def tail(self) -> Run:
        start = self.base.end + self.planned.logical_bytes
        return Run(start, self.planned.physical_bytes - start, "tail")

    def pieces(self) -> Iterator[Piece]:
        """All pieces of all groups."""
        for stretch in self.stretches:
            for of_group in stretch.pieces:
                yield from of_group

    def place(self, band: int) -> tuple[Stretch, int]:
        """The stretch of a band, and which of the stretch's bands it is."""
        for stretch in self.stretches:
            if band < stretch.bands:
                return stretch, band
            band -= stretch.bands
        raise IndexError(band)

    def extent(self, band: int) -> tuple[int, int]:
        """First byte of a band, and the byte after its last."""
        stretch, local = self.place(band)
        return stretch.extent(local)

    def starts(self, band: int) -> Sequence[int]:
        """Where the lead group's items of a band start: blocks of a layer, or pieces of a block."""
        stretch, local = self.place(band)
        return stretch.starts(local)

    def band_of(self, byte: int) -> int | None:
        """The band of a byte of the storage; None in base offset and tail."""
        if not self.base.end <= byte < self.tail.start:
            return None
        return bisect_right(range(self.bands), byte, key=lambda band: self.extent(band)[0]) - 1

    def runs(self, group: int, band: int, low: int = 0, high: int | None = None) -> Iterator[Run]:
        """A group's runs in [low, high) of a band, in address order, without a gap."""
        stretch, local = self.place(band)
        start, end = stretch.extent(local)
        at = start = max(start, low)
        end = end if high is None else min(end, high)
        for run in stretch.page_runs(group, local, start, end):
            first, last = max(run.start, start), min(run.end, end)
            if first >= last:
                continue
            assert first == at, "pages of a band follow each other"
            yield run._replace(start=first, length=last - first)
            at = last
        if at < end:
            yield Run(at, end - at, "unused")

    def run_at(self, byte: int, group: int) -> Run:
        """The run of a group that a byte of the storage lies in, cut to this byte."""
        band = self.band_of(byte)
        if band is None:
            return Run(byte, 1, "base" if byte < self.base.end else "tail")
        return next(self.runs(group, band, byte, byte + 1))


def pool_map(planned: Plan) -> PoolMap:
    """Describe a pool. Needs no memory: as many entries as a block has contiguous parts.

    Groups whose pages differ may overlay each other in an order that starts with L only where there
    is one block; that pool is one band.
    """
    start = planned.geometry.base_offset_bytes
    found = []
    for side in (False, True):
        stretch = _stretch(planned, start, side=side)
        if any(stretch.pieces):
            found.append(stretch)
            start += stretch.blocks * stretch.block_bytes
    return PoolMap(planned, tuple(found))


def _stretch(planned: Plan, start: int, *, side: bool) -> Stretch:
    geometry = planned.geometry
    pieces = tuple(
        tuple(sorted(_pieces(planned, group, side=side), key=_start))
        for group in range(len(geometry.groups))
    )
    block_bytes = max(
        sum(piece.content_bytes + piece.padding_bytes for piece in of_group) for of_group in pieces
    )
    by_layer = geometry.order[0] == "L" and geometry.blocks > 1
    return Stretch(start, block_bytes, geometry.blocks, pieces, by_layer, side)


def host_runs(planned: Plan, group: int) -> Iterator[HostRun]:
    """A group's runs of a host row: layer set by layer set, layer by layer, part by part."""
    at = 0
    for s, placement in enumerate(planned.placements[group]):
        for layer in range(placement.extents["L"]):
            for part in range(planned.geometry.host.chunk_blocks):
                yield HostRun(at, placement.content_bytes, "content", s, layer, part)
                at += placement.content_bytes
    if at < planned.row_bytes:
        yield HostRun(at, planned.row_bytes - at, "unused")


def _start(piece: Piece) -> int:
    return piece.start


def _pieces(planned: Plan, group: int, *, side: bool) -> Iterator[Piece]:
    sets = planned.geometry.groups[group].layer_sets
    for s, placement in enumerate(planned.placements[group]):
        if sets[s].side != side:
            continue
        strides = placement.grid
        parts = page_runs(placement)
        padding = placement.page_bytes - placement.content_bytes
        for layer in range(placement.extents["L"]):
            for head, (start, length) in enumerate(parts):
                at = start + layer * strides["L"]
                yield Piece(group, s, layer, head, at, length, padding, strides["B"])
