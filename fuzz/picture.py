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
class PoolMap:
    """The bytes of one pool.

    Attributes:
        planned: the geometry and its sizes.
        pieces: per group, in address order.
        by_layer: True where a band is one piece in all blocks, False where it is one whole block.
    """

    planned: Plan
    pieces: tuple[tuple[Piece, ...], ...]
    by_layer: bool

    @property
    def lead(self) -> int:
        """The group with the most pieces; its pieces number and divide the bands."""
        return max(range(len(self.pieces)), key=lambda group: len(self.pieces[group]))

    @property
    def bands(self) -> int:
        return len(self.pieces[self.lead]) if self.by_layer else self.planned.geometry.blocks

    @property
    def base(self) -> Run:
        return Run(0, self.planned.geometry.base_offset_bytes, "base")

    @property
    def tail(self) -> Run:
        start = self.base.end + self.planned.logical_bytes
        return Run(start, self.planned.physical_bytes - start, "tail")

    def extent(self, band: int) -> tuple[int, int]:
        """First byte of a band, and the byte after its last."""
        if self.by_layer:
            piece = self.pieces[self.lead][band]
            return piece.start, piece.start + self.planned.geometry.blocks * piece.block_stride
        start = self.base.end + band * self.planned.bytes_per_block
        return start, start + self.planned.bytes_per_block

    def starts(self, band: int) -> Sequence[int]:
        """Where the lead group's items of a band start: blocks of a layer, or pieces of a block."""
        if self.by_layer:
            start, end = self.extent(band)
            return range(start, end, self.pieces[self.lead][band].block_stride)
        return [piece.start + band * piece.block_stride for piece in self.pieces[self.lead]]

    def band_of(self, byte: int) -> int | None:
        """The band of a byte of the storage; None in base offset and tail."""
        if not self.base.end <= byte < self.tail.start:
            return None
        return bisect_right(range(self.bands), byte, key=lambda band: self.extent(band)[0]) - 1

    def runs(self, group: int, band: int, low: int = 0, high: int | None = None) -> Iterator[Run]:
        """A group's runs in [low, high) of a band, in address order, without a gap."""
        start, end = self.extent(band)
        at = start = max(start, low)
        end = end if high is None else min(end, high)
        for run in self._page_runs(group, band, start, end):
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

    def _page_runs(self, group: int, band: int, low: int, high: int) -> Iterator[Run]:
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


def pool_map(planned: Plan) -> PoolMap:
    """Describe a pool. Needs no memory: as many entries as a block has contiguous parts.

    Groups whose pages differ may overlay each other in an order that starts with L only where there
    is one block; that pool is one band.
    """
    geometry = planned.geometry
    pieces = tuple(
        tuple(sorted(_pieces(planned, g), key=_start)) for g in range(len(geometry.groups))
    )
    return PoolMap(planned, pieces, geometry.order[0] == "L" and geometry.blocks > 1)


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


def _pieces(planned: Plan, group: int) -> Iterator[Piece]:
    for s, placement in enumerate(planned.placements[group]):
        strides = placement.places[0].strides
        parts = page_runs(placement)
        padding = placement.page_bytes - placement.content_bytes
        for layer in range(placement.extents["L"]):
            for head, (start, length) in enumerate(parts):
                at = start + layer * strides["L"]
                yield Piece(group, s, layer, head, at, length, padding, strides["B"])
