"""Digests of what every format stores and reads back, to be the same on every machine.

    python tests/codecs_digests.py > tests/vectors/codecs_digests.json

after a change of the contract, and only then.
"""

import hashlib
import json

from codec_cases import LAYERS

from kvexact.refmodel.codecs import decode, encode
from kvexact.refmodel.content import slot_values
from kvexact.refmodel.ops import VALUE_STYLES, VALUE_TYPES

SLOTS = range(-1, 79)


def digests() -> dict[str, dict[str, str]]:
    """By format, then by value type and style: of values, cells and what they decode to."""
    found: dict[str, dict[str, str]] = {}
    for name, layers in LAYERS.items():
        shape = (1, 2, layers.head_size_k, layers.head_size_v)
        found[name] = {}
        for value_type in VALUE_TYPES:
            for style in VALUE_STYLES:
                values = slot_values(3, 1, 2, SLOTS, shape, value_type, style)
                cells = encode(layers, value_type, values)
                parts = values.tobytes() + cells.tobytes() + decode(layers, cells).tobytes()
                digest = hashlib.sha256(parts).hexdigest()
                found[name][f"{value_type} {style}"] = digest[:32]
    return found


if __name__ == "__main__":
    print(json.dumps(digests(), indent=2))
