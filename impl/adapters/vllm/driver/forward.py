"""What the model still does with blocks when their transfer is asked for.

Of a store it is the forward pass that fills them; of a load whatever had the blocks before. Their
bytes are scrambled, and the true ones are written by pending work of the model's stream: who does
not wait for it as it must moves, or keeps, the wrong bytes.
"""

from collections.abc import Callable, Iterable
from functools import partial

from kvexact.impl.adapters.vllm.driver.fields import Fields
from kvexact.impl.bounds import Bytes

#: A view of a field in all blocks, and the bytes that it has in some.
_Held = list[tuple[Bytes, Bytes]]


def made_pending(
    fields: Fields, blocks_by_group: Iterable[tuple[int, list[int]]]
) -> list[Callable[[], None]]:
    """Scramble the bytes of all layers in blocks of groups; what writes the true ones, by layer."""
    tasks: list[Callable[[], None]] = []
    scrambled: list[tuple[list[int], _Held]] = []
    for group, blocks in blocks_by_group:
        places = fields.kernel_blocks(group, sorted(set(blocks)))
        for layers in fields.views[group]:
            for layer in layers:
                held = [(view, view[places]) for view in layer.values()]
                scrambled.append((places, held))
                tasks.append(partial(_write, places, held))
    for places, held in scrambled:
        _write(places, [(view, ~true) for view, true in held])
    return tasks


def _write(places: list[int], held: _Held) -> None:
    for view, data in held:
        view[places] = data
