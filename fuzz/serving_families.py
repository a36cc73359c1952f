"""Geometries for requests: a few small blocks, so that pressure, eviction and windows meet."""

from dataclasses import replace

from kvexact.fuzz.choose import Chooser, chance, pick, weighted
from kvexact.fuzz.demands import fitted
from kvexact.fuzz.dimensions import Draft, GroupDraft, LayerSetDraft, build
from kvexact.refmodel.spec import Geometry

_FORMATS = ("fp8_e4m3", "fp8_e4m3", "bf16", "fp16", "fp32", "int8_per_token_head")
_SIZES = (1, 2, 3, 4, 4, 5, 6, 8)
#: For each block size those beside it whose common multiple is small.
_BESIDE = {1: (1, 2, 3, 4), 2: (1, 2, 3, 4, 6), 3: (1, 2, 3, 6), 4: (1, 2, 4, 6, 8)}
_BESIDE |= {5: (1, 5), 6: (1, 2, 3, 4, 6), 8: (1, 2, 4, 8)}
_L_ORDERS, _B_ORDERS = ("LBHNC", "LBNHC", "LHBNC"), ("BLHNC", "BLNHC", "BHLNC")
_WINDOWS = (1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 9, 11, 13)


def serving(chooser: Chooser) -> Geometry:
    """One to three groups, most of which see all tokens."""
    return _pool(chooser, 1 + weighted(chooser, (5, 4, 1)), window_percent=10)


def serving_windows(chooser: Chooser) -> Geometry:
    """The same with windows, mostly beside groups that see all tokens."""
    return _pool(chooser, 1 + weighted(chooser, (2, 6, 2)), window_percent=60)


def _pool(chooser: Chooser, count: int, *, window_percent: int) -> Geometry:
    size = pick(chooser, _SIZES)
    groups = [_group(chooser, size, window_percent)]
    order = pick(chooser, _L_ORDERS if count == 1 or chance(chooser, 20) else _B_ORDERS)
    if count == 1 and chance(chooser, 50):
        order = pick(chooser, _B_ORDERS)
    for _ in range(count - 1):
        group = _group(chooser, pick(chooser, _BESIDE[size]), window_percent)
        if order in _L_ORDERS:  # pages of groups over the same bytes agree there
            group = replace(groups[0], window_tokens=group.window_tokens)
        groups.append(group)
    blocks = count * pick(chooser, (2, 3, 3, 4, 4, 5, 6, 8))
    draft = Draft(
        tuple(groups),
        max(4, min(16, blocks)),
        order,
        kv_split=chance(chooser, 15),
        host_rows=pick(chooser, (1, 2, 3, 4, 5, 6)),
        chunk_blocks=pick(chooser, (1, 1, 2, 3)),
    )
    return build(draft)


def _group(chooser: Chooser, size: int, window_percent: int) -> GroupDraft:
    head_size = pick(chooser, (4, 4, 6, 8))
    layers = LayerSetDraft(
        pick(chooser, (1, 1, 2)),
        pick(chooser, (1, 1, 2)),
        head_size,
        head_size,
        pick(chooser, _FORMATS),
    )
    window = pick(chooser, _WINDOWS) if chance(chooser, window_percent) else None
    return GroupDraft(size, layer_sets=(fitted(layers),), window_tokens=window)
