"""Where bytes lie, found by walking memory: a second derivation of docs/design.md, for tests only.

No stride is computed here. A cursor steps over memory in physical order, byte after byte, and notes
what it passes. From these notes the tests work out addresses, regions, overlaps and refusals anew.
"""

import re
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

from kvexact.refmodel.spec import Geometry, Group, LayerSet

PADDING = "padding"
DOCS = Path(__file__).parents[1] / "docs" / "formats.md"


class Note(NamedTuple):
    """The cursor passed ``width`` bytes of a field of a cell, or the padding of one page.

    ``token`` is a slot, ``at`` the first of these bytes as the field counts them; of a field that
    lies in one piece it is 0.
    """

    group: int
    layer_set: int
    layer: int
    block: int
    head: int
    token: int
    field: str
    start: int
    width: int
    at: int = 0

    @property
    def span(self) -> range:
        return range(self.start, self.start + self.width)


class Part(NamedTuple):
    """A field of a cell: the region in which the documents put it, its bytes and its unit."""

    name: str
    region: int
    width: Fraction
    unit: int


class Row(NamedTuple):
    """A format as docs/formats.md has it: kind, and per region (field, bytes, unit)."""

    kind: str
    regions: tuple[tuple[tuple[str, str, int], ...], ...]


def _documented() -> dict[str, Row]:
    """The first table of docs/formats.md that names fields, by format."""
    found = {}
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[1] in ("row", "regions", "per head"):
            names = re.findall(r"`(\w+)`", cells[0])
            text = cells[2] if "[" in cells[2] else f"[{cells[2]}]"
            for column, name in enumerate(names):
                regions = []
                for region in re.findall(r"\[([^]]*)\]", text):
                    fields = re.findall(r"`(\w+)`(?:\(([^)]*)\))?", region)
                    regions.append(tuple(_field(*field, column) for field in fields))
                found[name] = Row(cells[1], tuple(regions))
    return found


def _field(name: str, size: str, column: int) -> tuple[str, str, int]:
    """A field's bytes as an expression, and its unit, in one of the table's columns of formats."""
    size, *unit = size.split(", unit ")
    head, *others = size.split(", ")
    if others:
        head = head.split("·")[0] + "·" + [head.split("·")[1], *others][column]
    if unit:
        return name, head, int(unit[0])
    if "·" in head and "/" not in head:
        return name, head, int(head.split("·")[1])
    return name, head, int(head) if head in ("2", "4") else 1


ROWS = _documented()


@cache
def parts_of(shape: LayerSet) -> tuple[Part, ...]:
    """The fields of a cell, in logical order."""
    parts: list[Part] = []
    sizes = {"Dk": shape.head_size_k, "Dv": shape.head_size_v, "": 0}
    for number, region in enumerate(ROWS[shape.page_format].regions):
        for name, size, unit in region:
            factors = re.split("[·/]", size)
            width = Fraction(sizes[factors[0]] if factors[0] in sizes else int(factors[0]))
            for sign, factor in zip(re.findall("[·/]", size), factors[1:], strict=True):
                width = width * int(factor) if sign == "·" else width / int(factor)
            if name == "pad":
                width = sum((part.width for part in parts), Fraction(0)) % 2
            packed = ROWS[shape.page_format].kind == "row" and "turboquant" in shape.page_format
            parts.append(Part(name, number, width, 1 if packed else unit))
    return tuple(part for part in parts if part.width)


def is_state(shape: LayerSet) -> bool:
    return shape.page_format.startswith("state_")


def slots_of(group: Group, shape: LayerSet) -> int:
    """Slots of a block, counted."""
    whole = range(group.tokens_per_state, group.block_size + 1, group.tokens_per_state)
    return 1 if is_state(shape) else len(whole)


@cache
def content_of(group: Group, shape: LayerSet) -> int:
    """Content bytes of one layer in one block, counted cell by cell."""
    cells = [part.width for part in parts_of(shape)] * (shape.kv_heads * slots_of(group, shape))
    return int(sum(cells))


def page_of(group: Group, shape: LayerSet) -> int:
    """Bytes of one layer in one block."""
    return content_of(group, shape) if shape.page_bytes is None else shape.page_bytes


def group_bytes(group: Group, *, side: bool) -> int:
    """Bytes of one block of a group: of its side buffers, or of its other layer sets."""
    sets = [shape for shape in group.layer_sets if shape.side == side]
    return sum(page_of(group, shape) for shape in sets for _ in range(shape.layers))


def area_bytes(geometry: Geometry, *, side: bool) -> int:
    """Bytes of every block before the side buffers, or in them."""
    return max(group_bytes(group, side=side) for group in geometry.groups)


def block_bytes(geometry: Geometry) -> int:
    """Bytes of the pool for every block."""
    return area_bytes(geometry, side=False) + area_bytes(geometry, side=True)


@cache
def walk(geometry: Geometry) -> tuple[Note, ...]:
    """What lies where, in the order in which the cursor passes it, group by group."""
    notes: list[Note] = []
    behind = geometry.base_offset_bytes + geometry.blocks * area_bytes(geometry, side=False)
    for side, base in ((False, geometry.base_offset_bytes), (True, behind)):
        for g, group in enumerate(geometry.groups):
            sets = [s for s, shape in enumerate(group.layer_sets) if shape.side == side]
            blocks = range(geometry.blocks)
            stretches = [blocks] if geometry.order[0] == "L" else [range(b, b + 1) for b in blocks]
            for stretch in stretches:
                start = base + stretch.start * area_bytes(geometry, side=side)
                walker = Walker(geometry, g, start, notes)
                for s in sets:
                    walker.layer_set(s, stretch)
    return tuple(notes)


class Walker:
    """A cursor in the bytes of one group; it adds to notes what it passes."""

    def __init__(self, geometry: Geometry, group: int, cursor: int, notes: list[Note]) -> None:
        self.geometry = geometry
        self.g = group
        self.group = geometry.groups[group]
        self.cursor = cursor
        self.notes = notes

    def layer_set(self, s: int, blocks: range) -> None:
        """Pass one layer set in these blocks."""
        self.s, self.shape = s, self.group.layer_sets[s]
        kernel = self.group.kernel_block_size
        self.slots = slots_of(replace(self.group, block_size=kernel), self.shape)
        self.ranges = {
            "L": range(self.shape.layers),
            "B": blocks,
            "P": range(self.group.block_size // kernel),
            "H": range(self.shape.kv_heads),
            "N": range(self.slots),
        }
        order = list(self.geometry.order[:4])
        self.page_axis = max("LB", key=order.index)
        order.insert(order.index("B") + 1, "P")
        inner = 1 + order.index(max("LP", key=order.index))
        self.padding = max(page_of(self.group, self.shape) - content_of(self.group, self.shape), 0)
        self.inside = order[inner:]
        self._grid(order[:inner], {"H": 0})

    def _grid(self, axes: list[str], at: dict[str, int]) -> None:
        """Pass pages, down to the point where one layer, block and kernel block is left."""
        if not axes:
            for region in self._regions():
                self._region(region, at)
            return
        axis, *inner = axes
        for step in self.ranges[axis]:
            at[axis] = step
            self._grid(inner, at)
            if axis == self.page_axis and self.padding:
                self._note({**at, "H": 0, "slot": 0}, PADDING, self.padding)

    def _regions(self) -> list[list[Part]]:
        """Fields that lie together in a page."""
        parts = parts_of(self.shape)
        if ROWS[self.shape.page_format].kind != "row":
            numbers = range(len(ROWS[self.shape.page_format].regions))
            return [[part for part in parts if part.region == number] for number in numbers]
        if not self.geometry.kv_split:
            return [[*parts]]
        key = [part for part in parts if part.name in ("k", "k_scale", "conv")]
        return [key, [part for part in parts if part not in key]]

    def _region(self, parts: list[Part], at: dict[str, int]) -> None:
        fmt = self.shape.page_format
        names = [part.name for part in parts]
        in_planes = fmt.endswith("_planes") and "v_scale" in names
        if ROWS[fmt].kind == "per head" or in_planes or fmt.endswith(("_rocm", "_aiter")):
            for head in self.ranges["H"] if "H" in self.inside else [at["H"]]:
                for part in parts:
                    self._array(part, {**at, "H": head})
        else:
            self._cells(self.inside, parts, at)

    def _cells(self, axes: list[str], parts: list[Part], at: dict[str, int]) -> None:
        if not axes:
            for part in parts:
                if (self.shape.page_format, part.name) == ("nvfp4_swizzled", "v_scale"):
                    self._swizzled(int(part.width), at)
                else:
                    self._note({**at, "slot": at["N"]}, part.name, int(part.width))
            return
        axis, *inner = axes
        for step in self.ranges[axis]:
            self._cells(inner, parts, {**at, axis: step})

    def _swizzled(self, width: int, at: dict[str, int]) -> None:
        """The scales that lie in one row: a quarter of those of four slots, in turn."""
        tile, quarter = divmod(at["N"], 4)
        for byte in range(quarter * width // 4, (quarter + 1) * width // 4):
            for slot in range(4 * tile, 4 * tile + 4):
                self._note({**at, "slot": slot}, "v_scale", 1, byte)

    def _array(self, part: Part, at: dict[str, int]) -> None:
        """One field of all slots of a head: slot by slot, or as a scattered field's tiles say."""
        slots, elements, x = self.slots, int(part.width) // part.unit, 16 // part.unit
        form = re.sub("^(fp32|bf16|fp8_[^_]+)_", "", self.shape.page_format)
        tiles = {  # loops, outermost first: letter of slot or element, how many steps, how long
            ("cpu_vec", "k"): [("d", elements, 1), ("t", slots, 1)],
            ("cpu_amx", "k"): [
                *(("t", slots // 16, 16), ("d", elements // 2, 2)),
                *(("t", 16, 1), ("d", 2, 1)),
            ],
            ("cpu_amx", "v"): [
                *(("d", elements // 16, 16), ("t", slots // 2, 2)),
                *(("d", 16, 1), ("t", 2, 1)),
            ],
            ("rocm", "k"): [("d", elements // x, x), ("t", slots, 1), ("d", x, 1)],
            ("rocm", "v"): [("d", elements, 1), ("t", slots, 1)],
            ("aiter", "k"): [("d", elements // x, x), ("t", slots, 1), ("d", x, 1)],
            ("aiter", "v"): [("t", slots // x, x), ("d", elements, 1), ("t", x, 1)],
        }
        loops = tiles.get((form, part.name))
        if loops:
            self._tiled(loops, part, at)
            return
        for slot in range(slots):
            self._note({**at, "slot": slot}, part.name, int(part.width))

    def _tiled(self, loops: list[tuple[str, int, int]], part: Part, at: dict[str, int]) -> None:
        letters = [letter for letter, _, _ in loops]
        for steps in product(*(range(0, count * length, length) for _, count, length in loops)):
            sums = {"d": 0, "t": 0}
            for letter, step in zip(letters, steps, strict=True):
                sums[letter] += step
            self._note({**at, "slot": sums["t"]}, part.name, part.unit, part.unit * sums["d"])

    def _note(self, at: dict[str, int], field: str, width: int, byte: int = 0) -> None:
        token = at["P"] * self.slots + at["slot"] if field != PADDING else 0
        place = (at["L"], at["B"], at["H"], token)
        self.notes.append(Note(self.g, self.s, *place, field, self.cursor, width, byte))
        self.cursor += width


def runs(addresses: list[int]) -> list[tuple[int, int]]:
    """Maximal runs (start, length) of sorted addresses."""
    cuts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(addresses)) if b != a + 1)]
    ends = [*cuts[1:], len(addresses)]
    return [(addresses[i], j - i) for i, j in zip(cuts, ends, strict=True)]


@cache
def pages(geometry: Geometry) -> dict[tuple[int, int, int, int], list[int]]:
    """Sorted content addresses by (group, layer set, layer, block)."""
    found: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for note in walk(geometry):
        if note.field != PADDING:
            found[note[:4]] += note.span
    return {key: sorted(addresses) for key, addresses in found.items()}


def overlapping(geometry: Geometry) -> bool:
    """Whether block b of one group shares a byte of a page with another block of any group."""
    unsplit = [replace(group, kernel_block_size=group.block_size) for group in geometry.groups]
    block_at: dict[int, int] = {}
    for note in walk(replace(geometry, groups=tuple(unsplit))):
        for address in note.span:
            if block_at.setdefault(address, note.block) != note.block:
                return True
    return False


def splittable(geometry: Geometry, g: int) -> bool:
    """Whether the kernel blocks of a group lie side by side, block after block, without a gap.

    Where heads are outermost, those of one head do.
    """
    several = replace(geometry, blocks=max(geometry.blocks, 2))
    lanes: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for note in walk(several):
        if note.group == g and note.field != PADDING:
            head = note.head if geometry.order == "LHBNC" else 0
            lanes[note.layer_set, note.layer, head] += note.span
    return all(len(runs(sorted(lane))) == 1 for lane in lanes.values())


def misaligned(geometry: Geometry) -> bool:
    """Whether some piece of some field of some cell starts off the field's unit."""
    units = {
        (g, s, part.name): part.unit
        for g, group in enumerate(geometry.groups)
        for s, shape in enumerate(group.layer_sets)
        for part in parts_of(shape)
    }
    return any(
        note.start % units[note.group, note.layer_set, note.field]
        for note in walk(geometry)
        if note.field != PADDING
    )


def cell_fits(shape: LayerSet) -> bool:
    """Whether the sizes meet what docs/formats.md demands of a cell."""
    fmt, key, value, heads = (
        *(shape.page_format, shape.head_size_k),
        *(shape.head_size_v, shape.kv_heads),
    )
    nvfp4 = fmt in ("nvfp4", "nvfp4_swizzled", "nvfp4_per_head")
    planes = fmt.endswith(("_rocm", "_aiter"))
    one_size = nvfp4 or planes or fmt == "ultraquant_4bit" or "_cpu_" in fmt
    powers = [2**n for n in range(40)]
    latent = {"fp8_ds_mla": 576, "nvfp4_ds_mla": 576} | {
        name: 512 if name.startswith("deepseek") else 128
        for name in ROWS
        if name.startswith(("deepseek", "indexer"))
    }
    return (
        all(part.width.denominator == 1 for part in parts_of(shape))
        and (key == value or not one_size)
        and (key % 16 == 0 or not nvfp4)
        and (key % 64 == 0 or fmt != "nvfp4_swizzled")
        and ((key % 32 == 0 and key in powers) or fmt != "ultraquant_4bit")
        and (not fmt.startswith("int4") or all(d == 0 or d % 1024 for d in (key, value)))
        and (key % 32 == 0 or not fmt.endswith("_cpu_amx"))
        and (key * (1 if "fp8" in fmt else 2) % 16 == 0 or not planes)
        and (fmt not in latent or (heads, key, value) == (1, latent[fmt], 0))
        and (heads == 1 or not is_state(shape))
    )


def layout_fits(geometry: Geometry, group: Group, shape: LayerSet) -> bool:
    """Whether order, split, slots and group can hold the format."""
    fmt, order = shape.page_format, geometry.order
    halves = fmt in ("fp32", "fp16", "bf16") or "_per_token_head" in fmt or is_state(shape)
    halves = halves or re.fullmatch("fp8_e[45]m[23](fnuz|_truncated)?", fmt) is not None
    spread = order in ("LHBNC", "BHLNC")
    arrays = ROWS[fmt].kind == "per head" or fmt.endswith(("_rocm", "_aiter"))
    slots = slots_of(replace(group, block_size=group.kernel_block_size), shape)
    tiles = {"nvfp4_swizzled": 4, "bf16_aiter": 8, "_cpu_amx": 32, "fp8_[^_]*_aiter": 16}
    tile = max([1, *(slots for name, slots in tiles.items() if re.search(f"{name}$", fmt))])
    return (
        len({is_state(other) for other in group.layer_sets}) == 1
        and (halves or not geometry.kv_split)
        and not (ROWS[fmt].kind != "row" and shape.kv_heads > 1 and spread)
        and not (arrays and shape.kv_heads > 1 and slots > 1 and order.endswith("NHC"))
        and slots % tile == 0
    )


def kernel_blocks_fit(geometry: Geometry, g: int) -> bool:
    """Whether a group's blocks can be seen as its kernel blocks."""
    group = geometry.groups[g]
    if group.block_size % group.kernel_block_size:
        return False
    if group.block_size == group.kernel_block_size:
        return True
    return (
        group.kernel_block_size % group.tokens_per_state == 0
        and not is_state(group.layer_sets[0])
        and splittable(geometry, g)
    )


def reason(geometry: Geometry) -> str | None:
    """Why a geometry must be refused, from what its bytes would do."""
    members = [(group, shape) for group in geometry.groups for shape in group.layer_sets]
    if not all(cell_fits(shape) for _, shape in members):
        return "cell"
    if not all(layout_fits(geometry, *member) for member in members):
        return "layout"
    if any(page_of(*m) < content_of(*m) or not content_of(*m) for m in members):
        return "page"
    heads_outside = geometry.order in ("LHBNC", "BHLNC")
    if heads_outside and any(
        page_of(*member) > content_of(*member) and member[1].kv_heads > 1 for member in members
    ):
        return "padding"
    if geometry.blocks > 1 and overlapping(geometry):
        return "overlay"
    if not all(kernel_blocks_fit(geometry, g) for g in range(len(geometry.groups))):
        return "kernel_split"
    if misaligned(geometry):
        return "alignment"
    logical = geometry.blocks * block_bytes(geometry)
    if geometry.logical_bytes is not None and geometry.logical_bytes != logical:
        return "pool_size"
    physical = geometry.physical_bytes
    if physical is not None and physical < geometry.base_offset_bytes + logical:
        return "pool_size"
    host = geometry.host
    row = host.chunk_blocks * max(
        sum(content_of(group, shape) * shape.layers for shape in group.layer_sets)
        for group in geometry.groups
    )
    while row % host.row_alignment:
        row += 1
    return "host" if host.capacity_bytes < row else None
