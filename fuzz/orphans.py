"""Processes that end with the one that started them, however that ends."""

import ctypes
import os
import signal

#: What `prctl` is asked for: the kernel sends this process a signal when its parent ends.
PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the one of this number ends, which started it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)
