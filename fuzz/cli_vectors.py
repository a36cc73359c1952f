"""``kvexact vectors``: test vectors for implementations in any language, and their check."""

from collections.abc import Mapping
from pathlib import Path

import click

from kvexact.fuzz.choose import Prng
from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.cli_targets import able_target
from kvexact.fuzz.console import Output
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.printing import printing_to_stderr
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.vectors import INDEX, Case, Json, write
from kvexact.fuzz.vectors_cases import default_cases
from kvexact.fuzz.vectors_check import Checked, VectorsError, check, load_answers, load_cases
from kvexact.fuzz.vectors_script import drawn

_COUNT = 10
_OPS = 20
_WORDS = {"verdict": "verdicts", "outcome": "outcomes", "returns": "reads"}


@click.group("vectors")
def vectors_command() -> None:
    """Test vectors: cases that an implementation in any language can be checked against.

    \b
    Example:
      kvexact vectors write --out vectors
      your-program vectors > answers.json
      kvexact vectors check vectors answers.json
    """  # noqa: D301


@vectors_command.command("write")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A new folder.")
@click.option(
    "--family",
    "families",
    multiple=True,
    type=click.Choice(tuple(FAMILIES)),
    help="Cases as this family draws them; may be given again. Without it: the default set.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same bytes.")
@click.option(
    "--count",
    type=click.IntRange(1, 10_000),
    help=f"Cases of each family; {_COUNT} if not given.",
)
def write_command(*, out: Path, families: tuple[str, ...], seed: int, count: int | None) -> None:
    """Write cases, one a file, and an index of them.

    \b
    Example:
      kvexact vectors write --out vectors --family overlay --family values --count 5
    """  # noqa: D301
    if count is not None and not families:
        raise BadInput(f"--count {count} counts cases of a family; name one with --family")
    cases = default_cases(seed)
    if families:
        cases = [case for name in families for case in _drawn_cases(name, seed, count or _COUNT)]
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise BadInput(f"{out}: not empty, and old files would lie among new; name another")
        size = write(cases, seed, out)
    except OSError as error:
        raise BadInput(f"{out}: {error.strerror}; name another folder with --out") from error
    Output().say(f"{len(cases)} cases, {size:,} bytes: {out / INDEX}")


def _drawn_cases(name: str, seed: int, count: int) -> list[Case]:
    family = FAMILIES[name]
    cases = []
    for number in range(count):
        chooser = Prng(derive(seed, "vectors", name, number))
        geometry = family.draw(chooser)
        source = None if family.plans_only else drawn(family, chooser, _OPS)
        slug = f"{name.replace('_', '-')}-{number:04}"
        cases.append(Case(slug, f"family {name}, seed {seed}, number {number}", geometry, source))
    return cases


@vectors_command.command("check")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("answers", required=False, type=click.Path(path_type=Path))
@click.option("--target", "target_name", metavar="NAME", help="Let this target answer instead.")
def check_command(*, folder: Path, answers: Path | None, target_name: str | None) -> int:
    """Compare an implementation's ANSWERS with the cases of DIR, up to the first difference.

    \b
    Example:
      kvexact vectors check vectors answers.json
    """  # noqa: D301
    if (answers is None) == (target_name is None):
        raise BadInput("give either a file of ANSWERS or --target NAME")
    try:
        cases = load_cases(folder)
        given = load_answers(answers) if answers else _ask(str(target_name), cases)
        found = check(cases, given)
    except VectorsError as error:
        raise BadInput(str(error)) from error
    return _print(found, len(cases))


def _ask(target_name: str, cases: list[Json]) -> dict[str, Json]:
    from kvexact.fuzz.vectors_target import answer

    target = able_target(target_name)
    with printing_to_stderr():
        return {case["name"]: answer(target.make(), case) for case in cases}


def _print(found: Checked, cases: int) -> int:
    console = Output()
    if found.difference:
        console.say(found.difference.where, style="red")
        console.say(f"  want  {found.difference.want}\n  got   {found.difference.got}")
        return 1
    if not found.checked.total():
        console.say("nothing was answered, so nothing was checked", style="red")
        return 1
    console.say(f"agree: {_counts(found.checked)} in {cases} cases", style="green")
    if found.unchecked.total():
        console.say(f"unchecked, for want of an answer: {_counts(found.unchecked)}")
    return 0


def _counts(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {_WORDS.get(name, name)}" for name, count in counted.items())
