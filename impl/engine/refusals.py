"""Why a planned geometry may not be: one check a reason, in the order of docs/design.md.

A text names the value, the rule that it breaks and a way out.
"""

from collections.abc import Callable, Iterator

from kvexact.impl.engine.demands import SLOTS_IN_TILE, SPLIT, demand
from kvexact.impl.engine.planner import is_state
from kvexact.impl.engine.plans import GroupPlan, Plan, SetPlan, Shape
from kvexact.refmodel.spec import Geometry, Refused


class Refusals:
    """The checks; each returns what is wrong, or None."""

    def check(self, plan: Plan) -> None:
        """Raise `Refused` for the first reason that applies."""
        checks: tuple[tuple[str, Callable[[Plan], str | None]], ...] = (
            ("cell", self.cell),
            ("layout", self.layout),
            ("page", self.page),
            ("padding", self.padding),
            ("overlay", self.overlay),
            ("kernel_split", self.kernel_split),
            ("alignment", self.alignment),
            ("pool_size", self.pool_size),
            ("host", self.host),
        )
        for reason, finds in checks:
            text = finds(plan)
            if text is not None:
                raise Refused(reason, text)

    def cell(self, plan: Plan) -> str | None:
        """Head sizes or a number of heads that a format does not have."""
        for _, one in _sets(plan):
            text = demand(one.shape.layer_set)
            if text is not None:
                return f"{one.shape.layer_set.page_format} {text}"
        return None

    def layout(self, plan: Plan) -> str | None:
        """An order, a split, slots or a group that cannot hold a format."""
        for group in plan.groups:
            if len({is_state(one.shape.layer_set) for one in group.sets}) > 1:
                formats = [one.shape.layer_set.page_format for one in group.sets]
                return f"one group has {', '.join(formats)}; states need a group of their own"
        for _, one in _sets(plan):
            text = _misplaced(plan.geometry, one.shape)
            if text is not None:
                return f"{one.shape.layer_set.page_format} {text}"
        return None

    def page(self, plan: Plan) -> str | None:
        """A page without content, or without room for it."""
        for declared, group in zip(plan.geometry.groups, plan.groups, strict=True):
            for shape in [one.shape for one in group.sets]:
                if not shape.content_bytes:
                    return (
                        f"{declared.block_size} tokens in a block are less than one slot; "
                        f"use {declared.tokens_per_state}, which share one, or more"
                    )
                if shape.page_bytes < shape.content_bytes:
                    least = shape.content_bytes
                    return f"page_bytes is {shape.page_bytes}, but needs {least} or more"
        return None

    def padding(self, plan: Plan) -> str | None:
        """Padding of a page whose heads lie apart: it has no one end."""
        if plan.geometry.order not in ("LHBNC", "BHLNC"):
            return None
        for _, one in _sets(plan):
            shape = one.shape
            if shape.page_bytes > shape.content_bytes and shape.heads > 1:
                return (
                    f"{plan.geometry.order} has {shape.heads} heads apart, so {shape.page_bytes} "
                    f"bytes cannot pad a page of {shape.content_bytes}; leave page_bytes out"
                )
        return None

    def overlay(self, plan: Plan) -> str | None:
        """Groups whose blocks would share bytes with other blocks of each other."""
        geometry = plan.geometry
        if len(plan.groups) == 1 or geometry.blocks == 1 or geometry.order[0] == "B":
            return None
        for side in (False, True):
            # All lists agree pairwise exactly where each is a beginning of the longest one.
            lists = [_run_list(geometry.order, group, side=side) for group in plan.groups]
            longest = max(lists, key=lambda runs: sum([count for _, count in runs]))
            for index, runs in enumerate(lists):
                if not _begins(longest, runs):
                    sizes = f"(bytes, pages) {runs} of group {index} and {longest} of another"
                    return f"{geometry.order}: {sizes} overlap; use equal pages or B outermost"
        return None

    def kernel_split(self, plan: Plan) -> str | None:
        """Kernel blocks that do not fill a block, or do not follow each other evenly."""
        for declared in plan.geometry.groups:
            block, kernel = declared.block_size, declared.kernel_block_size
            if block % kernel:
                return f"{kernel} tokens do not divide {block}; a kernel block has to"
            if block == kernel:
                continue
            if kernel % declared.tokens_per_state:
                return (
                    f"{declared.tokens_per_state} tokens share a slot and do not divide {kernel}; "
                    f"a kernel block needs whole slots"
                )
            if is_state(declared.layer_sets[0]):
                return f"a state is one kernel block, so use {block} tokens in it, not {kernel}"
        for group, one in _sets(plan):
            shape = one.shape
            dense = shape.head_bytes if plan.geometry.order == "LHBNC" else shape.content_bytes
            if group.parts > 1 and one.block_stride != dense:
                return (
                    f"block stride {one.block_stride} is not the {dense} bytes of its "
                    f"{group.parts} kernel blocks; use one, or blocks without gaps"
                )
        return None

    def alignment(self, plan: Plan) -> str | None:
        """A field with an address that is no multiple of its unit."""
        for group, one in _sets(plan):
            shape = one.shape
            extents = (
                shape.layers,
                plan.geometry.blocks * group.parts,
                shape.heads,
                group.kernel_slots,
            )
            for field, offset, *strides, _ in one.views:
                odd = offset % field.unit
                for extent, stride in zip(extents, strides, strict=True):
                    if extent > 1:
                        odd = odd or stride % field.unit
                if odd:
                    return (
                        f"{field.name} at {offset} with strides {strides} needs multiples of "
                        f"{field.unit}; change sizes, page_bytes or the base offset"
                    )
        return None

    def pool_size(self, plan: Plan) -> str | None:
        """Declared sizes that contradict the blocks."""
        geometry = plan.geometry
        if geometry.logical_bytes not in (None, plan.logical_bytes):
            return (
                f"logical_bytes is {geometry.logical_bytes}, but blocks have {plan.logical_bytes}; "
                f"declare these or none"
            )
        least = geometry.base_offset_bytes + plan.logical_bytes
        if plan.physical_bytes < least:
            return f"physical_bytes is {plan.physical_bytes}, but needs {least} or more"
        return None

    def host(self, plan: Plan) -> str | None:
        """A host tier without a single row."""
        if plan.scheduler_slots == 0:
            return (
                f"capacity_bytes is {plan.geometry.host.capacity_bytes}, but one row needs "
                f"{plan.row_bytes}; raise it or put fewer blocks in a chunk"
            )
        return None


def _misplaced(geometry: Geometry, shape: Shape) -> str | None:
    """Why the order, the split or the slots cannot hold a page of this shape."""
    name, slots = shape.layer_set.page_format, shape.kernel_slots
    if geometry.kv_split and name not in SPLIT:
        return "has no key half and value half; use kv_split False"
    arrays = all(region.per_head for region in shape.regions)
    if shape.heads > 1:
        if (arrays or len(shape.regions) > 1) and geometry.order in ("LHBNC", "BHLNC"):
            return (
                f"needs pages of one piece, but {geometry.order} has one for each of {shape.heads} "
                f"heads; use an order with heads inside pages"
            )
        if arrays and slots > 1 and geometry.order in ("LBNHC", "BLNHC"):
            return (
                f"needs the {slots} slots of a head together, but {geometry.order} has slots "
                f"outside heads; use an order that ends with HNC"
            )
    multiple = SLOTS_IN_TILE.get(name, 1)
    if slots % multiple:
        return f"needs a multiple of {multiple} slots in a kernel block, not {slots}"
    return None


def _sets(plan: Plan) -> Iterator[tuple[GroupPlan, SetPlan]]:
    for group in plan.groups:
        for one in group.sets:
            yield group, one


def _run_list(order: str, group: GroupPlan, *, side: bool) -> list[tuple[int, int]]:
    """(bytes, how many) of what follows each other in a layer-outermost pool, equal ones merged."""
    runs: list[tuple[int, int]] = []
    for one in group.sets:
        if one.shape.layer_set.side != side:
            continue
        size, count = one.shape.page_bytes, one.shape.layers
        if order == "LHBNC":
            size = one.shape.plane_bytes
            count *= one.shape.heads
        if runs and runs[-1][0] == size:
            count += runs.pop()[1]
        runs.append((size, count))
    return runs


def _begins(whole: list[tuple[int, int]], part: list[tuple[int, int]]) -> bool:
    """Whether the list ``whole`` starts with the list ``part``, or is as long and equal."""
    if not part:
        return True
    last = len(part) - 1
    if last >= len(whole):
        return False
    if part[:last] != whole[:last] or part[last][0] != whole[last][0]:
        return False
    return part[last][1] <= whole[last][1]
