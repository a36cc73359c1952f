"""``kvexact targets``, and how the other commands find a target."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.console import Output
from kvexact.fuzz.families import EVERY_FAMILY
from kvexact.fuzz.targets import (
    NamedTarget,
    UnknownTarget,
    find_target,
    registered_names,
    try_import,
    why_unavailable,
)
from kvexact.impl.target import Unavailable

target_option = click.option(
    "--target",
    "target_name",
    metavar="NAME",
    help="A registered target, or module:Class, also of a module in the current directory.",
)


def named_target(name: str) -> NamedTarget:
    """The target of a name from the command line.

    Raises:
        BadInput: there is none.
    """
    try:
        try_import(name)
        return find_target(name)
    except UnknownTarget as error:
        raise BadInput(str(error)) from error


def able_target(name: str) -> NamedTarget:
    """The target of a name, if it can run here.

    Raises:
        BadInput: it cannot.
    """
    target = named_target(name)
    why = why_unavailable(target)
    if why:
        raise BadInput(f"target {name!r} cannot run here: {why}")
    return target


def say_remarks(console: Output, *targets: NamedTarget) -> None:
    """What there is to know of targets as a run of them begins, a line only once."""
    for line in dict.fromkeys(target.target_type.remark() for target in targets):
        if line:
            console.say(line)


@contextmanager
def in_child(target: NamedTarget) -> Iterator[None]:
    """Around work in a process of its own: a target that cannot run there is bad input."""
    try:
        yield
    except Unavailable as error:
        raise BadInput(f"target {target.name!r} cannot run here: {error}") from error


@click.command("targets")
@click.option("--families", is_flag=True, help="List families of geometries too.")
def targets_command(*, families: bool) -> None:
    """Say what can be fuzzed here, and why not otherwise.

    \b
    Example:
      kvexact targets --families
    """  # noqa: D301
    console = Output()
    names = registered_names()
    width = max(map(len, names), default=0)
    for name in names:
        console.say(f"{name:{width}}  {_about(name)}")
    if families:
        width = max(map(len, EVERY_FAMILY))
        console.say("\nfamilies")
        for family in EVERY_FAMILY.values():
            console.say(f"{family.name:{width}}  {family.summary}")


def _about(name: str) -> str:
    """Whether a target can be fuzzed here, and what it is."""
    try:
        target = find_target(name)
    except UnknownTarget as error:
        return f"no: {error}"
    why = why_unavailable(target)
    found = target.target_type
    return f"no: {why}" if why else f"yes: {found.__module__}:{found.__qualname__}"
