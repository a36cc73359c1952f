"""Single edits of a trace: the steps of the reducer, and what *minimal* means.

A trace is minimal when none of these edits keeps its failure: one op fewer, one list element fewer,
one lower number, one choice in its simplest form, a simpler schedule, one dimension of the geometry
at an earlier value, one unused group fewer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from kvexact.fuzz.dimensions import build, draft_of, simpler
from kvexact.fuzz.trace import IN_ORDER
from kvexact.refmodel.ops import Allocate, Block, Handle, Op, map_blocks
from kvexact.refmodel.serving_ops import OnRequest
from kvexact.refmodel.spec import Geometry
from kvexact.refmodel.timed_ops import Poll

Path = tuple[str | int, ...]

_ALL_BELOW = 64
#: What ops are told beside places and numbers.
_CHOICES = frozenset({"zero", "value_type", "style", "sampled"})
#: Schedules, the simplest first: in order, as late as allowed, small numbers.
SCHEDULES = (IN_ORDER, 0, *range(2, _ALL_BELOW))
#: Numbers that name ops.
_REFERENCES = frozenset({"id", "job", "request"})


class Program(NamedTuple):
    """What a trace runs, and under which schedule."""

    geometry: Geometry
    ops: tuple[Op, ...]
    schedule: int = IN_ORDER


def edits(program: Program) -> Iterator[Program]:
    """Every single edit of a program, each kind from its largest effect to its smallest."""
    for index in range(len(program.ops)):
        yield without_ops(program, index, 1)
    for op_index, path, _ in elements(program):
        edited = without_element(program, op_index, path)
        if edited is not None:
            yield edited
    for op_index, path, value in numbers(program):
        for lower in below(value):
            yield with_number(program, op_index, path, lower)
    yield from simpler_choices(program)
    yield from simpler_schedules(program)
    yield from simpler_geometries(program)


def without_ops(program: Program, start: int, count: int) -> Program:
    """``count`` ops fewer."""
    return program._replace(ops=program.ops[:start] + program.ops[start + count :])


def elements(program: Program) -> list[tuple[int, Path, Any]]:
    """(op index, path, element) of every list element."""
    return [
        (op_index, path, element)
        for op_index, op in enumerate(program.ops)
        for path, element in _elements(op, ())
    ]


def without_element(program: Program, op_index: int, path: Path) -> Program | None:
    """One list element fewer. None for an allocated block that a handle stands for.

    Handles on the later blocks of a shortened `Allocate` follow their blocks.
    """
    op = program.ops[op_index]
    ops = list(program.ops)
    ops[op_index] = _drop(op, path)
    if type(op) is Allocate:
        gone = path[-1]
        assert type(gone) is int
        if any(Handle(op.id, gone) in handles_of(other) for other in ops):
            return None
        ops = [_follow(other, op.id, gone) for other in ops]
    return program._replace(ops=tuple(ops))


def numbers(program: Program) -> list[tuple[int, Path, int]]:
    """(op index, path, value) of every number but op ids."""
    return [
        (op_index, path, value)
        for op_index, op in enumerate(program.ops)
        for path, value in _numbers(op, ())
    ]


def with_number(program: Program, op_index: int, path: Path, value: int | None) -> Program:
    """One number replaced."""
    ops = list(program.ops)
    ops[op_index] = _put(ops[op_index], path, value)
    return program._replace(ops=tuple(ops))


def below(value: int) -> Sequence[int]:
    """Lower numbers, the lowest first: all of them up to 64, then a few."""
    if value < 0:
        return (0,)
    if value <= _ALL_BELOW:
        return range(value)
    return (0, 1, value // 2, value - 1)


def simpler_choices(program: Program) -> Iterator[Program]:
    """One choice of an op in its simplest form, which is its default."""
    for index, op in enumerate(program.ops):
        for item in fields(op):
            if item.name in _CHOICES and getattr(op, item.name) != item.default:
                ops = list(program.ops)
                ops[index] = _put(op, (item.name,), item.default)
                yield program._replace(ops=tuple(ops))


def simpler_schedules(program: Program) -> Iterator[Program]:
    """The same ops under simpler schedules."""
    for number in SCHEDULES:
        if number == program.schedule:
            return
        yield program._replace(schedule=number)


def simpler_geometries(program: Program) -> Iterator[Program]:
    """The same ops on simpler geometries."""
    geometry = program.geometry
    for group in range(len(geometry.groups)):
        fewer = _without_group(program, group)
        if fewer is not None:
            yield fewer
    for draft in simpler(draft_of(geometry)):
        yield program._replace(geometry=build(draft))


def renumbered(program: Program) -> Program:
    """The same program with op ids that count from 0."""
    ids = {op.id: number for number, op in enumerate(program.ops)}

    def rename(block: Block) -> Block:
        return Handle(ids.get(block.op, -1), block.nth) if isinstance(block, Handle) else block

    ops = []
    for op in program.ops:
        if type(op) is Poll:
            op = replace(op, job=ids.get(op.job, -1))
        if isinstance(op, OnRequest):
            op = replace(op, request=ids.get(op.request, -1))
        ops.append(replace(map_blocks(op, rename), id=ids[op.id]))
    return program._replace(ops=tuple(ops))


def _without_group(program: Program, gone: int) -> Program | None:
    """One group fewer, where no op names it; ops follow their groups."""
    groups = program.geometry.groups
    used = {value for _, path, value in numbers(program) if _names_group(path)}
    if gone in used or len(groups) == 1:
        return None
    edited = program
    for op_index, path, value in numbers(program):
        if _names_group(path) and value > gone:
            edited = with_number(edited, op_index, path, value - 1)
    geometry = replace(program.geometry, groups=groups[:gone] + groups[gone + 1 :])
    return edited._replace(geometry=geometry)


def _names_group(path: Path) -> bool:
    return path == ("group",) or (len(path) == 3 and path[0] == "jobs" and path[2] == 0)


def _elements(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    for key, child in _children(node):
        if type(node) is tuple:
            yield (*path, key), child
        yield from _elements(child, (*path, key))


def _numbers(node: Any, path: Path) -> Iterator[tuple[Path, int]]:
    for key, child in _children(node):
        if key in _REFERENCES or (type(node) is Handle and key == 0):
            continue
        if type(child) is int:
            yield (*path, key), child
        yield from _numbers(child, (*path, key))


def handles_of(op: Op) -> set[Handle]:
    """All handles that an op names."""
    found: set[Handle] = set()

    def note(block: Block) -> Block:
        if isinstance(block, Handle):
            found.add(block)
        return block

    map_blocks(op, note)
    return found


def _follow(op: Op, allocate: int, gone: int) -> Op:
    def shift(block: Block) -> Block:
        if isinstance(block, Handle) and block.op == allocate and block.nth > gone:
            return Handle(allocate, block.nth - 1)
        return block

    return map_blocks(op, shift)


def _children(node: Any) -> Iterator[tuple[str | int, Any]]:
    if is_dataclass(node):
        for item in fields(node):
            yield item.name, getattr(node, item.name)
    elif isinstance(node, tuple):
        yield from enumerate(node)


def _put(node: Any, path: Path, value: object) -> Any:
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(key, str):
        return replace(node, **{key: _put(getattr(node, key), rest, value)})
    items = [*node[:key], _put(node[key], rest, value), *node[key + 1 :]]
    return _like(node, items)


def _drop(node: Any, path: Path) -> Any:
    key, rest = path[0], path[1:]
    if isinstance(key, str):
        return replace(node, **{key: _drop(getattr(node, key), rest)})
    if not rest:
        return _like(node, [*node[:key], *node[key + 1 :]])
    return _like(node, [*node[:key], _drop(node[key], rest), *node[key + 1 :]])


def _like(node: Any, items: list[Any]) -> Any:
    """A tuple, or a named tuple of the node's kind."""
    return tuple(items) if type(node) is tuple else type(node)(*items)
