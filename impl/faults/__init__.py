"""Planted faults: each makes one decision of the built-in engine as a real system once made it.

A fault replaces a width, a stride, an order, a bound or a check, never bytes after an op. `report`
is the public report that it is modelled on, where there is one. The fuzzer's power is measured on
these faults.

Kinds: WIDTH transfer extent, STRIDE stride from shape or dropped offset, PAD padding taken for
data, GRAN block granularities mixed up, LAYOUT axes or halves exchanged, ALIAS overlaid views, ELEM
size of an element, CAP capacity, MAP wrong id mapping, OBO off by one, PADSLOT pad row written,
ALIGN alignment or tile, COVER part of the state not moved, ZERO zeroed range, STALE or EVICT
content that is gone, REUSE source or target in use, CODEC rule of encoding, DTYPE encoding taken
for another, KEY identity of stored content, RACE-D2H and RACE-H2D transfers out of order, STAGING
buffers used too early, STATUS done before the bytes are there.
"""

from importlib import import_module

from kvexact.impl.faults.register import FAULTS, Fault

__all__ = ["FAULTS", "Fault"]

for _part in (
    "places",
    "transfers",
    "kernels",
    "tables",
    "formats",
    "codecs",
    "serving",
    "races",
):  # in the order of reports
    import_module(f"{__name__}.{_part}")

# Each engine is found by kvexact fuzz --target kvexact.impl.faults:NAME.
globals().update({name: fault.target for name, fault in FAULTS.items()})
