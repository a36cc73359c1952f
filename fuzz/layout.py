"""Processes whose memory is laid out alike.

Linux gives each process other addresses. But what a processor has learnt about branches it keeps by
their addresses: two processes that take turns on one core learn all of the interpreter's branches
twice, and over again. Where they have the same ones, isolating a target costs a third less.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_ADDR_NO_RANDOMIZE = 0x0040000
_ASK = 0xFFFFFFFF


@contextmanager
def same_addresses() -> Iterator[None]:
    """What this thread starts inside, and what that starts, is laid out as all of its kind.

    Where the system forbids that, as in some containers, addresses stay as they are.
    """
    personality = ctypes.CDLL(None).personality
    before = personality(ctypes.c_ulong(_ASK))
    personality(ctypes.c_ulong(before | _ADDR_NO_RANDOMIZE))
    try:
        yield
    finally:
        personality(ctypes.c_ulong(before))
