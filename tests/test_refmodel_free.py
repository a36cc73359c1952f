"""What a target may declare free: beside content, and only in what an op writes."""

from kvexact.refmodel.free import block_padding, page_padding
from kvexact.refmodel.ops import Job, Move, Restore
from kvexact.refmodel.plan import plan
from kvexact.refmodel.rows import Rows
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

#: Beside the 8 bytes of the small group's one layer in block 1: of the 32 of a block, and of two
#: layers of 3 blocks of 16.
WANT = {"BLHNC": [*range(40, 64)], "LBHNC": [*range(24, 32), *range(64, 80)]}


def test_padding_of_a_block_is_all_that_its_owner_has_no_content_in() -> None:
    large, small = LayerSet(2, 1, 8, 8, "fp8_e4m3"), LayerSet(1, 1, 4, 4, "fp8_e4m3", page_bytes=12)
    groups = (Group(1, 1, (large,)), Group(1, 1, (small,)))
    for order in ("BLHNC", "LBHNC"):
        if order == "LBHNC":
            padded = LayerSet(1, 1, 4, 4, "fp8_e4m3", page_bytes=16)
            groups = (Group(1, 1, (large,)), Group(1, 1, (padded,)))
        rows = Rows(plan(Geometry(groups, 3, Host(64), order=order)))
        op = Restore(0, (Job(1, (Move(1, 0, 0),)),))
        free = block_padding(rows, op)
        content = rows.layout(1).of_block(1)
        assert free.tolist() == WANT[order]
        assert not set(free.tolist()) & set(content.tolist())
        assert set(page_padding(rows, op).tolist()) <= set(free.tolist())
