"""Why a planned geometry may not be: one check a reason, in the order of docs/design.md."""

from collections.abc import Callable, Iterator

from kvexact.impl.engine.planner import GroupPlan, Plan, SetPlan
from kvexact.refmodel.spec import Refused

_INT4 = "int4_per_token_head"


class Refusals:
    """The checks; each returns what is wrong, or None."""

    def check(self, plan: Plan) -> None:
        """Raise `Refused` for the first reason that applies."""
        checks: tuple[tuple[str, Callable[[Plan], str | None]], ...] = (
            ("cell", self.cell),
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
        """Data that ends inside a byte: only int4 has elements of half a byte."""
        for group in plan.geometry.groups:
            for one in group.layer_sets:
                odd = one.head_size_k % 2 or one.head_size_v % 2
                if one.page_format == _INT4 and odd:
                    return f"head sizes {one.head_size_k} and {one.head_size_v} of 4-bit elements"
        return None

    def page(self, plan: Plan) -> str | None:
        """A page that has no room for its content."""
        for _, one in _sets(plan):
            if one.shape.page_bytes < one.shape.content_bytes:
                return f"page of {one.shape.page_bytes} bytes, {one.shape.content_bytes} of content"
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
        # All lists agree pairwise exactly where each is a beginning of the longest one.
        lists = [_run_list(geometry.order, group) for group in plan.groups]
        longest = max(lists, key=lambda runs: sum([count for _, count in runs]))
        for index, runs in enumerate(lists):
            if not _begins(longest, runs):
                return f"{geometry.order}: group {index} has pages where others have other pages"
        return None

    def kernel_split(self, plan: Plan) -> str | None:
        """Kernel blocks that do not fill a block, or do not follow each other evenly."""
        for group in plan.geometry.groups:
            if group.block_size % group.kernel_block_size:
                return f"{group.kernel_block_size} tokens do not divide {group.block_size}"
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
            for field, offset, *strides in one.views:
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


def _sets(plan: Plan) -> Iterator[tuple[GroupPlan, SetPlan]]:
    for group in plan.groups:
        for one in group.sets:
            yield group, one


def _run_list(order: str, group: GroupPlan) -> list[tuple[int, int]]:
    """(bytes, how many) of what follows each other in a layer-outermost pool, equal ones merged."""
    runs: list[tuple[int, int]] = []
    for one in group.sets:
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
    last = len(part) - 1
    if last >= len(whole):
        return False
    if part[:last] != whole[:last] or part[last][0] != whole[last][0]:
        return False
    return part[last][1] <= whole[last][1]
