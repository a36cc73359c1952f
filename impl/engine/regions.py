"""What a transfer engine registers of a pool, and what that leaves of the host tier.

The pool is registered by its logical size. Its storage may be longer: the tail behind the blocks is
nobody's, and may be as long as many pools.
"""

from typing import NamedTuple

from kvexact.impl.engine.planner import raised
from kvexact.impl.engine.plans import GroupPlan, Plan
from kvexact.refmodel.spec import Refused


class Region(NamedTuple):
    """``blocks`` runs of ``length`` bytes, ``stride`` apart, from ``base`` in the storage on."""

    base: int
    blocks: int
    stride: int
    length: int


class Registered(NamedTuple):
    """Per group its regions in the order of a host row, and what the worker makes of the host tier.

    Attributes:
        worker_slots: host slots that the worker reckons with.
        host_rows: rows of the host tier that transfers may touch.
    """

    groups: tuple[tuple[Region, ...], ...]
    worker_slots: int
    host_rows: int


class Registrar:
    """Registers a pool on the worker's side."""

    def register(self, plan: Plan, storage_bytes: int, logical_bytes: int | None) -> Registered:
        """The regions of a pool whose storage, base offset included, has ``storage_bytes``.

        Args:
            plan: the blocks' places.
            storage_bytes: what the allocator gave.
            logical_bytes: what the configuration declares; the storage's own size cannot tell.

        Raises:
            Refused: pool_size, for a logical size that is missing, too small, no whole number of
                pools, or more than the storage holds.
        """
        pool_bytes = plan.geometry.blocks * plan.bytes_per_block
        behind_base = storage_bytes - plan.geometry.base_offset_bytes
        if logical_bytes is None:
            raise Refused("pool_size", f"no logical size for a storage of {storage_bytes} bytes")
        if logical_bytes > behind_base:
            text = f"{logical_bytes} logical bytes do not fit into {behind_base} behind the base"
            raise Refused("pool_size", text)
        bound = self.bound(behind_base, logical_bytes, pool_bytes)
        if bound < pool_bytes or bound % pool_bytes:
            text = f"{bound} bytes are not {plan.geometry.blocks} blocks of {plan.bytes_per_block}"
            raise Refused("pool_size", text)
        pools = bound // pool_bytes
        groups = tuple([self.group_regions(plan, group, pools) for group in plan.groups])
        slots = self.worker_slots(plan, groups)
        return Registered(groups, slots, slots)

    def bound(self, storage_bytes: int, logical_bytes: int, pool_bytes: int) -> int:  # noqa: ARG002
        """How many bytes behind the base offset are viewed as pools of ``pool_bytes``."""
        return logical_bytes

    def group_regions(self, plan: Plan, group: GroupPlan, pools: int) -> tuple[Region, ...]:
        """One group's regions, in the order of a host row; the bound makes ``pools`` one."""
        blocks = plan.geometry.blocks
        pool_bytes = blocks * plan.bytes_per_block
        regions = []
        for pool in range(pools):
            for one in group.sets:
                start = one.offset + pool * pool_bytes
                stride = one.block_stride if blocks > 1 else 0
                for layer in range(one.shape.layers):
                    base = start + layer * one.layer_stride
                    for run in range(one.runs):
                        where = base + run * one.run_stride
                        regions.append(Region(where, blocks, stride, one.run_bytes))
        return tuple(regions)

    def worker_slots(self, plan: Plan, groups: tuple[tuple[Region, ...], ...]) -> int:
        """Host slots by what is registered; the scheduler counts by what is configured."""
        host = plan.geometry.host
        block = max([sum([region.length for region in group]) for group in groups])
        return host.capacity_bytes // raised(block * host.chunk_blocks, host.row_alignment)


def facts(
    plan: Plan, registered: Registered
) -> dict[str, int | tuple[int, ...] | tuple[tuple[int, ...], ...]]:
    """What the engine believes about a geometry, by the names of docs/design.md."""
    named: dict[str, int | tuple[int, ...] | tuple[tuple[int, ...], ...]] = {
        "pool.bytes_per_block": plan.bytes_per_block,
        "pool.logical_bytes": plan.logical_bytes,
        "pool.physical_bytes": plan.physical_bytes,
    }
    for g, group in enumerate(plan.groups):
        kernel_blocks = plan.geometry.blocks * group.parts
        for s, one in enumerate(group.sets):
            shape = one.shape
            named[f"g{g}.s{s}.content_bytes"] = shape.content_bytes
            named[f"g{g}.s{s}.page_bytes"] = shape.page_bytes
            for field, offset, layer, block, head, token, _ in one.views:
                named[f"g{g}.s{s}.{field.name}.view"] = (
                    offset,
                    layer if shape.layers > 1 else 0,
                    block if kernel_blocks > 1 else 0,
                    head if shape.heads > 1 else 0,
                    token if group.kernel_slots > 1 else 0,
                )
    named["regions"] = tuple(sorted([tuple(region) for region in set().union(*registered.groups)]))
    named["host.row_bytes"] = plan.row_bytes
    named["host.scheduler_slots"] = plan.scheduler_slots
    named["host.worker_slots"] = registered.worker_slots
    return named
