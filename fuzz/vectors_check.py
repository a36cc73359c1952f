"""Reads vectors and the answers of an implementation to them, and compares the two."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kvexact.fuzz.vectors import INDEX, VERSION, Json

_BYTES_MOST = 64 * 1024 * 1024
_CASE_KEYS = ("verdict", "facts", "digests")
_OP_KEYS = ("outcome", "returns", "digests")


class VectorsError(ValueError):
    """Files that are no vectors or no answers: one line that names the value, rule and fix."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that an implementation sees otherwise.

    Attributes:
        where: case, op, and which fact or digest.
    """

    where: str
    want: object
    got: object


@dataclass(slots=True)
class Checked:
    """What a comparison came to.

    Attributes:
        checked: answers that agree, by what they are about.
        unchecked: what had no answer.
        difference: the first one, at which the comparison ended; None: all answers agree.
    """

    checked: Counter[str] = field(default_factory=Counter)
    unchecked: Counter[str] = field(default_factory=Counter)
    difference: Difference | None = None


def load_cases(folder: Path) -> list[Json]:
    """All cases of a folder that `write` wrote.

    Raises:
        VectorsError: it is none, or of another version.
    """
    index = _load(folder / INDEX, "kvexact_vectors")
    cases = []
    for number, item in enumerate(_items(index, "cases", folder / INDEX)):
        name = item.get("file")
        if not isinstance(name, str) or Path(name).name != name:
            raise VectorsError(
                f"{folder / INDEX}: cases[{number}] has file {name!r:.60}; name a file beside it"
            )
        case = _load(folder / name, "kvexact_vectors")
        if not {"name", "verdict", "geometry"} <= case.keys():
            raise VectorsError(f"{folder / name}: no case; write the vectors again")
        cases.append(case)
    return cases


def load_answers(path: Path) -> Json:
    """Answers by case name.

    Raises:
        VectorsError: the file has none.
    """
    answers = _load(path, "kvexact_answers").get("cases")
    if not isinstance(answers, dict) or not all(isinstance(v, dict) for v in answers.values()):
        raise VectorsError(f'{path}: "cases" is no object of objects; give one for each case name')
    return answers


def _load(path: Path, version_key: str) -> Json:
    try:
        if path.stat().st_size > _BYTES_MOST:
            raise VectorsError(f"{path}: larger than {_BYTES_MOST:,} bytes; write fewer cases")
        found = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise VectorsError(f"{path}: {error.strerror}; name what vectors write made") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise VectorsError(f"{path}: no JSON ({error}); mend or write it again") from error
    version = found.get(version_key) if isinstance(found, dict) else None
    if version != VERSION or type(version) is not int:
        raise VectorsError(
            f"{path}: {version_key} is {version!r:.40}; this kvexact reads version {VERSION}"
        )
    assert isinstance(found, dict)
    return found


def _items(data: Json, key: str, path: Path) -> list[Json]:
    found = data.get(key)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise VectorsError(f'{path}: "{key}" is no list of objects; make it one')
    return found


def check(cases: list[Json], answers: Mapping[str, Json]) -> Checked:
    """Compare answers with cases, case by case and op by op, up to the first difference.

    Raises:
        VectorsError: an answer to what was not asked: it would be checked by nobody.
    """
    unknown = sorted(answers.keys() - {case["name"] for case in cases})
    if unknown:
        raise VectorsError(f"no case is named {unknown[0]!r:.60}; answer cases of the index")
    found = Checked()
    for case in cases:
        for difference in _compare(case, answers.get(case["name"], {}), found):
            found.difference = difference
            return found
    return found


def _compare(case: Json, answer: Json, found: Checked) -> Iterator[Difference]:
    """Differences of one case; counts what is compared on the way."""
    where = f"case {case['name']}"
    given = answer.get("ops", [])
    rest = {key: value for key, value in answer.items() if key != "ops"}
    yield from _compare_keys(where, case, rest, _CASE_KEYS, found)
    ops = case.get("ops", [])
    if not isinstance(given, list) or len(given) > len(ops):
        raise VectorsError(f"{where}: ops must be a list of at most {len(ops)}, one for each op")
    for number, op in enumerate(ops):
        one = given[number] if number < len(given) else None
        if not isinstance(one, dict | None):
            raise VectorsError(f"{where}: ops[{number}] is {one!r:.40}; use an object or null")
        place = f"{where}, op {number} {op['op']['op']}"
        yield from _compare_keys(place, op, one or {}, _OP_KEYS, found)


def _compare_keys(
    where: str, want: Json, got: Json, keys: tuple[str, ...], found: Checked
) -> Iterator[Difference]:
    """Compare what is asked under these keys; of an object each of its members."""
    unknown = sorted(got.keys() - set(keys))
    if unknown:
        raise VectorsError(f"{where}: unknown key {unknown[0]!r:.40}; keys are {', '.join(keys)}")
    for key in keys:
        if key not in want:
            if key in got:
                yield Difference(f"{where}: {key}", "nothing", got[key])
        elif isinstance(want[key], dict):
            given = got.get(key, {})
            if not isinstance(given, dict) or given.keys() - want[key].keys():
                raise VectorsError(f"{where}: {key} must be an object with keys of the case's own")
            for name, value in want[key].items():
                what = f"{key.removesuffix('s')} {name}"
                yield from _one(f"{where}: {what}", key, value, given.get(name), found)
        else:
            yield from _one(f"{where}: {key}", key, want[key], got.get(key), found)


def _one(where: str, kind: str, want: Any, got: Any, found: Checked) -> Iterator[Difference]:
    if got is None:
        found.unchecked[kind] += 1
    elif got != want or type(got) is not type(want):
        yield Difference(where, want, got)
    else:
        found.checked[kind] += 1
