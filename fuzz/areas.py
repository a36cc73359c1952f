"""The areas of a model and of a target, side by side: every byte, after every op."""

from collections.abc import Sequence

import numpy as np

from kvexact.fuzz.counts import Counts
from kvexact.fuzz.shown import Known, as_view
from kvexact.fuzz.wrong import Wrong, raised_by
from kvexact.impl.target import Area, Bytes, Target
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.free import PADDINGS
from kvexact.refmodel.ops import KIND_OF, Op
from kvexact.refmodel.order import Ordered
from kvexact.refmodel.positions import ByteOp


class Unsettled:
    """Bytes of an area that may differ, as the model marks them, to be asked again and again.

    Args:
        mask: all bits of each of them.
        blurred: the bytes of the area, and all bits of these.
    """

    def __init__(self, mask: Bytes, blurred: Bytes) -> None:
        self.mask = mask
        self.blurred = blurred
        self._want = blurred.data
        self._bytes = bytearray(mask.size)  # as in `Known`
        self._got = np.frombuffer(self._bytes, np.uint8)

    def cover(self, got: Bytes) -> bool:
        """Whether the others are the same."""
        np.bitwise_or(got, self.mask, self._got)
        return self._bytes == self._want


class Areas:
    """All areas that a target declares.

    Attributes:
        to_come: whether some unsettled byte was not yet what it will be, at the last comparison.

    Raises:
        Wrong: in each method: a byte, a size or a form is wrong.
    """

    def __init__(self, target: Target, model: Cache, counts: Counts) -> None:
        self._target = target
        self._model = model
        self._counts = counts
        self._known: dict[Area, Known] = {
            area: Known(model.memory[area]) for area in sorted(target.declared)
        }
        self._unsettled: dict[Area, Unsettled] = {}
        if isinstance(model, Ordered):
            for area in self._known:
                self._unsettled[area] = Unsettled(model.unsettled[area], model.blurred[area])
        self.to_come = False

    def poison(self) -> None:
        """Give all areas their first bytes; the target must copy them, as its own stay apart."""
        for area in self._known:
            want, view = self._model.areas[area], self._view(area, None)
            if view.size != want.size:
                raise _of_other_size(area, None, want, view)
            self.load(area, None)
            if np.may_share_memory(want, self._view(area, None)):
                text = f"the {area} is the very memory that load was given; load must copy it"
                raise Wrong("fact", None, text, "its own", "the model's", name=f"{area}.memory")

    def load(self, area: Area, op: Op | None) -> None:
        """Give an area the model's bytes."""
        try:
            self._target.load(area, self._model.areas[area])
        except BaseException as error:
            raise raised_by(self._target, error, op) from error

    def adopt_free(self, op: Op, in_bytes: Sequence[ByteOp]) -> None:
        """Take what the target declares free, inside this op's extents, from the target.

        Args:
            in_bytes: what the op does to bytes.
        """
        for free in self._target.free:
            if free.op_kind != KIND_OF[type(op)]:
                continue
            area: Area = "host" if free.what == "host_padding" else "pool"
            for one in in_bytes:
                places = PADDINGS[free.what](self._model, one)
                if places.size and area in self._known:
                    self._model.areas[area][places] = self._view(area, op)[places]
                    self._counts.free_bytes += places.size

    def compare(self, op: Op | None) -> None:
        """Compare every byte that is settled; the op was the last one."""
        self.to_come = False
        for area, known in self._known.items():
            got = self._view(area, op)
            self._counts.compared_bytes += got.size
            if not known.equals(got):
                want = self._model.areas[area]
                if got.size != want.size:
                    raise _of_other_size(area, op, want, got)
                if self._unsettled:
                    self.to_come = True
                    unsettled = self._unsettled[area]
                    if unsettled.cover(got):
                        continue
                    got = np.where(unsettled.mask, want, got)  # what will be is right
                text = f"{area} differs in {np.count_nonzero(want != got)} bytes"
                raise Wrong("mismatch", op, text, want.copy(), np.array(got), area)

    def _view(self, area: Area, op: Op | None) -> Bytes:
        try:
            view = self._target.view(area)
            return view if view is self._known[area].met else as_view(view, area)
        except BaseException as error:
            raise raised_by(self._target, error, op) from error


def _of_other_size(area: Area, op: Op | None, want: Bytes, view: Bytes) -> Wrong:
    text = f"the {area} has {view.size} bytes, not {want.size}"
    return Wrong("fact", op, text, want.size, view.size, name=f"{area}.bytes")
