"""Faults of page formats: where fields of a page lie, what belongs to it, what a slot is."""

# ruff: noqa: ARG002  # an override keeps the signature of the decision that it replaces

from kvexact.impl.engine.formats import Scatter
from kvexact.impl.engine.planner import Planner, is_state
from kvexact.impl.engine.plans import FieldView, GroupPlan, Plan, SetPlan
from kvexact.impl.engine.regions import Region
from kvexact.impl.engine.tables import BlockTable
from kvexact.impl.engine.transfers import Transfers
from kvexact.impl.engine.views import Strip, Views
from kvexact.impl.faults.register import BOUNDS, LOST, PLACED, PLANNED, READ, planted
from kvexact.refmodel.spec import Group, LayerSet


@planted("value_scales_in_key_order", "LAYOUT", "vllm#50084", 2, PLACED)
class _ValueScalesInKeyOrder(Views):
    """The writer stores a token's value scales side by side, not in tiles of four tokens."""

    def view(self, group: GroupPlan, one: SetPlan, view: FieldView, consumer: str) -> FieldView:
        swizzled = one.shape.layer_set.page_format == "nvfp4_swizzled"
        if not consumer.startswith("write") or not swizzled or view.field.name != "v_scale":
            return view
        keys = next(other for other in one.views if other.field.name == "k_scale")
        return view._replace(token=keys.token, scatter=keys.scatter)


@planted("slots_past_their_tile", "ALIGN", "no public report", 2, PLACED)
class _SlotsPastTheirTile(Views):
    """The writer lays all slots of a kernel block out as those of its first tile."""

    def view(self, group: GroupPlan, one: SetPlan, view: FieldView, consumer: str) -> FieldView:
        tile = view.scatter
        if not consumer.startswith("write") or tile.tile >= group.kernel_slots:
            return view
        return view._replace(scatter=tile._replace(tile_stride=tile.tile * view.token))


@planted("regions_read_as_cells", "ELEM", "vllm#47716", 2, READ | BOUNDS)
class _RegionsReadAsCells(Views):
    """The reader takes a page of rows and then scales for records with their scales inside."""

    def view(self, group: GroupPlan, one: SetPlan, view: FieldView, consumer: str) -> FieldView:
        if consumer != "read" or one.shape.heads > 1 or len(one.shape.regions) == 1:
            return view
        size = view.field.bytes
        whole = Scatter(size, 1, 0, 0, one.shape.kernel_slots, 0)
        place = one.offset + view.field.cell_offset
        return view._replace(offset=place, token=one.shape.cell_bytes, scatter=whole)


@planted("state_scaled_with_block_size", "WIDTH", "no public report", 0, PLANNED)
class _StateScaledWithBlockSize(Planner):
    """A page of a state takes as many states as the block has tokens."""

    def slots(self, group: Group, layer_set: LayerSet) -> tuple[int, int]:
        if is_state(layer_set):
            return group.block_size, group.kernel_block_size
        return super().slots(group, layer_set)


@planted("state_moved_by_the_token", "WIDTH", "no public report", 2, LOST)
class _StateMovedByTheToken(Transfers):
    """A transfer divides a page by the tokens of its block and moves whole tokens of it."""

    def width(self, one: SetPlan, region: Region) -> int:
        group = next(group for group in self.plan.groups if one in group.sets)
        tokens = self.plan.geometry.groups[self.plan.groups.index(group)].block_size
        return region.length // tokens * tokens if is_state(one.shape.layer_set) else region.length


@planted("side_buffer_left_behind", "COVER", "sglang#38031", 2, LOST)
class _SideBufferLeftBehind(Transfers):
    """A transfer moves keys and values and leaves the index keys beside them where they are."""

    def width(self, one: SetPlan, region: Region) -> int:
        return 0 if one.shape.layer_set.side else region.length


@planted("side_buffer_not_copied", "COVER", "sglang#36121", 2, LOST)
class _SideBufferNotCopied(Views):
    """A copy of a block carries its pages but not its side buffers."""

    def copy_runs(self, group: GroupPlan) -> list[Strip]:
        sets = tuple([one for one in group.sets if not one.shape.layer_set.side])
        return super().copy_runs(group._replace(sets=sets))


@planted("side_buffer_at_the_blocks_stride", "STRIDE", "kvcached#434", 2, PLACED | BOUNDS | READ)
class _SideBufferAtTheBlocksStride(Views):
    """Index keys are found as pages of the blocks are: at the stride of a block."""

    def view(self, group: GroupPlan, one: SetPlan, view: FieldView, consumer: str) -> FieldView:
        geometry = self.plan.geometry
        if not one.shape.layer_set.side or geometry.order[0] != "B" or group.parts > 1:
            return view
        return view._replace(block=self.plan.bytes_per_block)


@planted("packed_padding_zeroed", "ZERO", "no public report", 1, {"frame"})
class _PackedPaddingZeroed(Views):
    """A block is zeroed up to the aligned end of its packed rows."""

    def zero_bytes(self, one: SetPlan) -> int:
        packed = one.runs == 1 and len(one.shape.regions) > 1
        return one.shape.page_bytes if packed else one.run_bytes


@planted("tokens_taken_for_slots", "MAP", "no public report", 2, PLACED | READ | BOUNDS)
class _TokensTakenForSlots(BlockTable):
    """A slot of a block is found by the block's tokens, although several share a slot."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._tokens = [group.block_size for group in plan.geometry.groups]

    def slots_of_block(self, group: int) -> int:
        return self._tokens[group]


@planted("pad_written_with_values", "PAD", "no public report", 2, {"frame"})
class _PadWrittenWithValues(Views):
    """Encoded rows are stored up to their even end, their pad byte too."""

    def fields(self, one: SetPlan, consumer: str) -> list[FieldView]:
        return super().fields(one, "write" if consumer == "write_values" else consumer)
