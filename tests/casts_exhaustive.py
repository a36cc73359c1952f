"""Every fp32 number through the casts to fp8, beside torch and ml_dtypes; no pytest item.

    python tests/casts_exhaustive.py [--part 1/64]

takes the whole of the 2^32 numbers, or every 64th chunk of them, and fails with what is apart.
"""

import argparse
import multiprocessing
import sys
import time
from functools import partial

import numpy as np
import torch
from cast_differences import ELEMENTS, LIBRARIES, TORCH, unexplained

from kvexact.refmodel.codecs.elements import Codes, Floats
from kvexact.refmodel.codecs.tensor import truncate

CHUNK_BITS = 15  # so that arrays stay in the processor's cache
CHUNKS = 1 << (32 - CHUNK_BITS)
NEAREST = ("e4m3", "e5m2", "e4m3fnuz")
TRUNCATED = ("e4m3", "e5m2")


def cut_off(name: str, x: Floats) -> Codes:
    """The truncating cast by torch: nearest, then one code down where that is more than there was.

    Below the least normal number fp32 rounds to its last bit before it is cut off.
    """
    element = ELEMENTS[name]
    largest = float(element.decode(np.array(element.largest)))
    there = torch.from_numpy(x)
    v = torch.nan_to_num(there.abs(), nan=largest, posinf=largest).clamp(max=largest)
    last = 2.0 ** (-149 + 127 - element.bias)
    v = torch.where(v < 2.0 ** (1 - element.bias), torch.round(v / last) * last, v)
    near = v.to(TORCH[name])
    code = near.view(torch.uint8) - (near.float() > v).to(torch.uint8)
    minus = (there < 0).to(torch.uint8) << 7
    return (code | minus).numpy()


def apart(chunk: int) -> list[str]:
    """What is apart in a chunk."""
    bits = np.arange(1 << CHUNK_BITS, dtype=np.uint32) + np.uint32(chunk << CHUNK_BITS)
    x = bits.view(np.float32)
    found = {}
    with np.errstate(all="ignore"):
        for name in NEAREST:
            ours = ELEMENTS[name].encode(x)
            for library in LIBRARIES:
                found[f"{name} of {library}"] = unexplained(library, name, x, ours)
        for name in TRUNCATED:
            wrong = truncate(ELEMENTS[name], x) != cut_off(name, x)
            found[f"{name} truncated"] = x[wrong]
    return [f"{what}: {some[:3].tolist()}" for what, some in found.items() if some.size]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1", help="1/n: every n-th chunk")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    chunks = range(0, CHUNKS, int(arguments.part.partition("/")[2]))
    start = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(
        arguments.workers, initializer=partial(torch.set_num_threads, 1)
    ) as pool:
        wrong = [line for lines in pool.imap_unordered(apart, chunks, 64) for line in lines]
    numbers = len(chunks) << CHUNK_BITS
    print(f"{numbers} numbers in {time.monotonic() - start:.0f} s; apart in {len(wrong)} chunks")
    print(*wrong[:20], sep="\n", end="")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
