"""Faults of sizes and places: planning, views, regions and the host tier's capacity."""

# ruff: noqa: ARG002  # an override keeps the signature of the decision that it replaces

from dataclasses import replace

from kvexact.impl.engine.device import Device
from kvexact.impl.engine.planner import Planner
from kvexact.impl.engine.plans import FieldView, GroupPlan, Plan, SetPlan, Shape, Strides
from kvexact.impl.engine.regions import Registered, Registrar
from kvexact.impl.engine.views import Views
from kvexact.impl.faults.register import BOUNDS, PLACED, PLANNED, READ, planted, register
from kvexact.refmodel.spec import Geometry, Group, LayerSet


@planted("cell_without_scales", "ELEM", "kvcached#424", 0, PLANNED)
class _CellWithoutScales(Planner):
    """Sizes come from an element that has no room for the inline scales."""

    def shape(self, group: Group, layer_set: LayerSet) -> Shape:
        right = super().shape(group, layer_set)
        data = sum([field.bytes for field in right.fields if not field.is_scale])
        head = right.slots * data
        content = right.heads * head
        page = layer_set.page_bytes or content
        return right._replace(head_bytes=head, content_bytes=content, page_bytes=page)


@planted("layers_counted_twice", "WIDTH", "vllm#40075", 0, PLANNED)
class _LayersCountedTwice(Planner):
    """Bytes that are already a sum over a layer set's layers are multiplied by them again."""

    def set_bytes(self, shape: Shape) -> int:
        return super().set_bytes(shape) * shape.layers


@planted("scale_views_from_shape", "STRIDE", "vllm#48412", 0, PLANNED)
class _ScaleViewsFromShape(Planner):
    """Scale views step from block to block as if each layer had a contiguous buffer of its own."""

    def views(
        self, geometry: Geometry, shape: Shape, start: int, strides: Strides, kernel_block: int
    ) -> tuple[FieldView, ...]:
        right = super().views(geometry, shape, start, strides, kernel_block)
        if kernel_block != strides.block:
            return right  # split blocks are dense anyway
        dense = shape.content_bytes
        return tuple([one._replace(block=dense) if one.field.is_scale else one for one in right])


@planted("scale_views_mended_in_writer_only", "ALIAS", "vllm#49226", 2, READ | BOUNDS)
class _ReaderScalesFromShape(Views):
    """Scale views were mended in the writer; the reader still takes strides from the shape."""

    def view(self, group: GroupPlan, one: SetPlan, view: FieldView, consumer: str) -> FieldView:
        if consumer == "read" and view.field.is_scale:
            return view._replace(block=one.shape.content_bytes // group.parts)
        return view


@planted("padded_stride_from_content", "STRIDE", "vllm#49716", 2, PLACED | READ)
class _PaddedStrideFromContent(Views):
    """Views of padded pages step by the content that their shape holds."""

    def view(self, group: GroupPlan, one: SetPlan, view: FieldView, consumer: str) -> FieldView:
        padding = one.shape.page_bytes - one.shape.content_bytes
        if padding == 0:
            return view
        pages = one.shape.layers if self.plan.geometry.order[0] == "B" else 1
        return view._replace(block=view.block - pages * padding)


@planted("hnd_walked_as_nhd", "LAYOUT", "LMCache#2374", 2, READ)
class _HeadsOutsideReadAsInside(Views):
    """The reader walks pages whose heads lie outside the tokens as if they lay inside."""

    def view(self, group: GroupPlan, one: SetPlan, view: FieldView, consumer: str) -> FieldView:
        if consumer == "read" and self.plan.geometry.order in ("LBHNC", "BLHNC"):
            return view._replace(head=view.token, token=view.token * one.shape.heads)
        return view


@planted("split_read_as_packed", "LAYOUT", "LMCache#4463", 2, READ)
class _SplitReadAsPacked(Views):
    """The reader takes cells of key and value for a key half and a value half, and the reverse."""

    def __init__(self, plan: Plan, device: Device) -> None:
        super().__init__(plan, device)
        other = replace(plan.geometry, kv_split=not plan.geometry.kv_split)
        self._other = Planner().plan(other)

    def view(self, group: GroupPlan, one: SetPlan, view: FieldView, consumer: str) -> FieldView:
        if consumer != "read":
            return view
        g = self.plan.groups.index(group)
        s = group.sets.index(one)
        return self._other.groups[g].sets[s].views[one.views.index(view)]


register(
    "read_by_flat_slot",
    "STRIDE",
    "vllm#47783",
    2,
    READ,
    "The reader multiplies the flat slot by the token stride and ignores the block stride.",
    macros=("KVEXACT_FAULT_READ_BY_FLAT_SLOT",),
)


@planted("physical_viewed_as_regions", "PAD", "vllm#54021", 0, PLANNED)
class _PhysicalAsRegions(Registrar):
    """The whole storage is viewed as blocks; a tail that does not divide stops the start-up."""

    def bound(self, storage_bytes: int, logical_bytes: int, pool_bytes: int) -> int:
        return storage_bytes


@planted("phantom_regions", "CAP", "vllm#54021", 0, {"fact"})
class _PhantomRegions(Registrar):
    """The storage is cut into as many pools as fit; a long tail makes regions that nobody has."""

    def bound(self, storage_bytes: int, logical_bytes: int, pool_bytes: int) -> int:
        return storage_bytes // pool_bytes * pool_bytes


@planted("phantom_regions_unreported", "CAP", "vllm#54021", 2, BOUNDS)
class _PhantomRows(Registrar):
    """Phantom regions leave the worker fewer host rows than both sides report."""

    def register(self, plan: Plan, storage_bytes: int, logical_bytes: int | None) -> Registered:
        right = super().register(plan, storage_bytes, logical_bytes)
        wrong = _PhantomRegions().register(plan, storage_bytes, logical_bytes)
        return right._replace(host_rows=wrong.worker_slots)


@planted("host_row_from_first_group", "CAP", "vllm#50443", 0, PLANNED)
class _RowFromFirstGroup(Planner):
    """A host row has room for the first group's chunk; other groups' chunks may be larger."""

    def block_content(self, shapes: list[list[Shape]]) -> int:
        return super().block_content(shapes[:1])
