"""Seeds of parts from the seed of the whole."""

from hashlib import sha256


def derive(seed: int, *parts: object) -> int:
    """A 64-bit seed that differs for every list of parts."""
    text = "\0".join(map(str, (seed, *parts)))
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")
