"""Why a planned geometry may not be: one check a reason, in the order of docs/design.md."""

from collections.abc import Callable, Iterator

from kvexact.impl.engine.demands import SLOTS_IN_TILE, SPLIT, demand
from kvexact.impl.engine.planner import GroupPlan, Plan, SetPlan, Shape, is_state
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
                return "a group of state formats and others"
        for _, one in _sets(plan):
            text = _misplaced(plan.geometry, one.shape)
            if text is not None:
                return f"{one.shape.layer_set.page_format} {text}"
        return None

    def page(self, plan: Plan) -> str | None:
        """A page without content, or without room for it."""
        for _, one in _sets(plan):
            shape = one.shape
            if not shape.content_bytes:
                return "a block of fewer tokens than share a state"
            if shape.page_bytes < shape.content_bytes:
                return f"page of {shape.page_bytes} bytes, {shape.content_bytes} of content"
        return None

    def padding(self, plan: Plan) -> str | None:
        """Padding of a page whose heads lie apart: it has no one end."""
        if plan.geometry.order not in ("LHBNC", "BHLNC"):
            return None
        for _, one in _sets(plan):
            if one.shape.page_bytes > one.shape.content_bytes and one.shape.heads > 1:
                return f"{plan.geometry.order} with {one.shape.heads} heads cannot pad pages"
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
                    return f"{geometry.order}: group {index} has pages where others have others"
        return None

    def kernel_split(self, plan: Plan) -> str | None:
        """Kernel blocks that do not fill a block, or do not follow each other evenly."""
        for declared in plan.geometry.groups:
            block, kernel = declared.block_size, declared.kernel_block_size
            if block % kernel:
                return f"{kernel} tokens do not divide {block}"
            if block == kernel:
                continue
            if kernel % declared.tokens_per_state:
                return (
                    f"{declared.tokens_per_state} tokens that share a slot do not divide {kernel}"
                )
            if is_state(declared.layer_sets[0]):
                return "a state is no sequence of kernel blocks"
        for group, one in _sets(plan):
            shape = one.shape
            dense = shape.head_bytes if plan.geometry.order == "LHBNC" else shape.content_bytes
            if group.parts > 1 and one.block_stride != dense:
                return f"block stride {one.block_stride} is not the {dense} bytes of kernel blocks"
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
                    return f"{field.name} at {offset} with strides {strides}, unit {field.unit}"
        return None

    def pool_size(self, plan: Plan) -> str | None:
        """Declared sizes that contradict the blocks."""
        geometry = plan.geometry
        if geometry.logical_bytes not in (None, plan.logical_bytes):
            return (
                f"{geometry.logical_bytes} logical bytes declared, {plan.logical_bytes} in blocks"
            )
        least = geometry.base_offset_bytes + plan.logical_bytes
        if plan.physical_bytes < least:
            return f"{plan.physical_bytes} physical bytes, {least} needed"
        return None

    def host(self, plan: Plan) -> str | None:
        """A host tier without a single row."""
        if plan.scheduler_slots == 0:
            return f"{plan.geometry.host.capacity_bytes} bytes hold no row of {plan.row_bytes}"
        return None


def _misplaced(geometry: Geometry, shape: Shape) -> str | None:
    """Why the order, the split or the slots cannot hold a page of this shape."""
    name, slots = shape.layer_set.page_format, shape.kernel_slots
    if geometry.kv_split and name not in SPLIT:
        return "cannot be split into key half and value half"
    arrays = all(region.per_head for region in shape.regions)
    if shape.heads > 1:
        if (arrays or len(shape.regions) > 1) and geometry.order in ("LHBNC", "BHLNC"):
            return f"needs pages of one piece; {geometry.order} has one a head"
        if arrays and slots > 1 and geometry.order in ("LBNHC", "BLNHC"):
            return f"needs slots inside heads; {geometry.order} has them outside"
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
