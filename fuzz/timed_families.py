"""Geometries for asynchronous targets: few blocks, few host slots, several layers.

Ops meet each other's blocks and slots all the time, and transfers have pieces enough to be taken
apart.
"""

from dataclasses import replace

from kvexact.fuzz.budget import fit
from kvexact.fuzz.choose import Chooser, pick
from kvexact.fuzz.demands import fitted_group
from kvexact.fuzz.dimensions import Draft, GroupDraft, LayerSetDraft
from kvexact.fuzz.drawing import draw_format, draw_pool, draw_set
from kvexact.fuzz.value_families import ENCODING
from kvexact.refmodel.spec import Geometry

_LAYERS, _BLOCKS, _HOST_ROWS, _TOKENS = (2, 3, 4), (2, 3, 4), (1, 2, 3), (1, 2, 3, 4)


def timed(chooser: Chooser) -> Geometry:
    """One group of one shape."""
    return fit(chooser, _pool(chooser, _group(chooser, draw_format(chooser))))


def timed_groups(chooser: Chooser) -> Geometry:
    """Two groups over the same bytes, which take blocks and host slots from each other."""
    first = _group(chooser, draw_format(chooser))
    other = replace(first, layer_sets=tuple(map(_fewer_layers, first.layer_sets)))
    return fit(chooser, _pool(chooser, first, other))


def timed_values(chooser: Chooser) -> Geometry:
    """Pages that encode real values."""
    return fit(chooser, _pool(chooser, _group(chooser, pick(chooser, ENCODING))))


def _group(chooser: Chooser, page_format: str) -> GroupDraft:
    layers = replace(draw_set(chooser, page_format), layers=pick(chooser, _LAYERS))
    return fitted_group(GroupDraft(pick(chooser, _TOKENS), layer_sets=(layers,)))


def _fewer_layers(layers: LayerSetDraft) -> LayerSetDraft:
    return replace(layers, layers=layers.layers - 1)


def _pool(chooser: Chooser, *groups: GroupDraft) -> Draft:
    return replace(
        draw_pool(chooser, *groups),
        blocks=pick(chooser, _BLOCKS),
        host_rows=pick(chooser, _HOST_ROWS),
        chunk_blocks=pick(chooser, (1, 1, 2)),
        tail_alignment=1,
    )
