"""The words and numbers of a picture, the same in the terminal and in an SVG."""

from collections.abc import Iterator
from typing import NamedTuple

from kvexact.fuzz.pictures.maps import HostRun, Piece, PoolMap, Run
from kvexact.refmodel.address import Placement
from kvexact.refmodel.facts import view
from kvexact.refmodel.plan import Plan

#: Columns of a field table; strides and sizes in bytes.
FIELD_COLUMNS = ("field", "bytes", "first byte", "layer", "kernel block", "head", "token")

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


class FieldRow(NamedTuple):
    """One line of a field table; an axis of extent 1 has stride 0."""

    name: str
    numbers: tuple[int, ...]


def size(count: int) -> str:
    """Bytes in full, and in a binary unit from 10 KiB: "27,648 bytes (27.0 KiB)"."""
    text = f"{count:,} byte{'' if count == 1 else 's'}"
    if count < 10 * 1024:
        return text
    value, unit = count / 1024, 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{text} ({value:.1f} {_UNITS[unit]})"


def counted(count: int, thing: str) -> str:
    """A number and its noun: "1 block", "16 blocks"."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def summary(planned: Plan) -> Iterator[tuple[str, str]]:
    """Name and value of what describes a pool as a whole."""
    geometry = planned.geometry
    split = ", keys of a page before its values" if geometry.kv_split else ""
    yield "order", geometry.order + split
    yield "blocks", f"{geometry.blocks:,} x {size(planned.bytes_per_block)}"
    yield "logical", size(planned.logical_bytes)
    base = geometry.base_offset_bytes
    tail = planned.physical_bytes - base - planned.logical_bytes
    yield (
        "physical",
        f"{size(planned.physical_bytes)} = base offset {base:,} + logical + tail {tail:,}",
    )
    chunk = counted(geometry.host.chunk_blocks, "block")
    rows = counted(planned.host_slots, "row")
    yield "host tier", f"{rows} of {size(planned.row_bytes)}; a row holds a chunk of {chunk}"
    if len(geometry.groups) > 1:
        yield (
            "groups",
            f"{len(geometry.groups)} over the same bytes; a block has one owner at a time",
        )


def set_name(planned: Plan, group: int, layer_set: int) -> str:
    """Which layer set: "group 0, layer set 1"."""
    several = len(planned.geometry.groups[group].layer_sets) > 1
    return f"group {group}, layer set {layer_set}" if several else f"group {group}"


def set_shape(planned: Plan, group: int, layer_set: int) -> str:
    """What a layer set consists of."""
    owner = planned.geometry.groups[group]
    layers = owner.layer_sets[layer_set]
    block = f"block of {counted(owner.block_size, 'token')}"
    if owner.tokens_per_state > 1:
        block += f", {owner.tokens_per_state} to a slot"
    if owner.kernel_block_size != owner.block_size:
        block += f" = {owner.block_size // owner.kernel_block_size} kernel blocks"
    side = ", side buffer" if layers.side else ""
    return (
        f"{layers.page_format}{side}, {counted(layers.layers, 'layer')}, "
        f"{counted(layers.kv_heads, 'head')}, {block}, "
        f"head size {layers.head_size_k} key / {layers.head_size_v} value"
    )


def set_sizes(placement: Placement) -> str:
    """Bytes of a layer set's cell and page."""
    padding = placement.page_bytes - placement.content_bytes
    return (
        f"cell {placement.cell_bytes:,}, content {placement.content_bytes:,}, "
        f"padding {padding:,}, page {size(placement.page_bytes)}"
    )


def field_rows(placement: Placement) -> Iterator[FieldRow]:
    """Width, first byte and strides of every field of a layer set."""
    for place in placement.places:
        yield FieldRow(place.field.name, (place.field.width_bytes, *view(placement, place)))


def piece_name(pool: PoolMap, piece: Piece) -> str:
    """Short name of a piece of a page: "s1 L60 h7", only what tells it from others."""
    name = f"L{piece.layer}"
    if len(pool.planned.geometry.groups[piece.group].layer_sets) > 1:
        name = f"s{piece.layer_set} {name}"
    return f"{name} h{piece.head}" if spread(pool, piece) else name


def spread(pool: PoolMap, piece: Piece) -> bool:
    """Whether the heads of a page lie apart, so that a piece is one head of it."""
    page = pool.planned.placements[piece.group][piece.layer_set]
    return piece.content_bytes < page.content_bytes


def item_name(pool: PoolMap, run: Run) -> str:
    """Short name of a run inside its band: what changes from run to run."""
    assert run.piece is not None
    return f"b{run.block}" if pool.by_layer else piece_name(pool, run.piece)


def band_name(pool: PoolMap, band: int, group: int) -> str:
    """Short name of a band as a group sees it."""
    stretch, local = pool.place(band)
    if not pool.by_layer:
        return f"{'side' if stretch.side else 'block'} {local}"
    pieces = stretch.pieces[group]
    return piece_name(pool, pieces[local]) if local < len(pieces) else "unused"


def run_title(pool: PoolMap, run: Run) -> str:
    """What a run is, in full, with its bytes in the storage."""
    where = f"bytes {run.start:,} to {run.end - 1:,} ({size(run.length)})"
    if run.piece is None:
        return f"{run.kind}: {where}"
    piece = run.piece
    owner = set_name(pool.planned, piece.group, piece.layer_set)
    head = f", head {piece.head}" if spread(pool, piece) else ""
    return f"{owner}, layer {piece.layer}{head}, block {run.block}, {run.kind}: {where}"


def host_title(planned: Plan, group: int, run: HostRun) -> str:
    """What a run of a host row is, with its bytes in the row."""
    where = f"row bytes {run.start:,} to {run.end - 1:,} ({size(run.length)})"
    if run.kind == "unused":
        return f"unused by group {group}: {where}"
    owner = set_name(planned, group, run.layer_set)
    return f"{owner}, layer {run.layer}, part {run.part}: {where}"


def host_name(planned: Plan, group: int, run: HostRun) -> str:
    """Short name of a run of a host row."""
    name = f"L{run.layer}"
    if len(planned.geometry.groups[group].layer_sets) > 1:
        name = f"s{run.layer_set} {name}"
    return f"{name} p{run.part}" if planned.geometry.host.chunk_blocks > 1 else name


def band_word(pool: PoolMap) -> str:
    """What a band is one of."""
    if not pool.by_layer:
        return "block"
    spread_heads = any(spread(pool, piece) for piece in pool.pieces())
    return "layer and head" if spread_heads else "layer"
