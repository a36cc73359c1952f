"""``kvexact targets``, and how the other commands find a target."""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.targets import (
    NamedTarget,
    UnknownTarget,
    find_target,
    registered_names,
    why_unavailable,
)
from kvexact.impl.target import Target

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
    here = str(Path.cwd())
    if ":" in name and here not in sys.path:
        sys.path.append(here)
    try:
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


def families_of(target: type[Target]) -> tuple[str, ...]:
    """The families that fit a target."""
    declared: tuple[str, ...] | None = getattr(target, "families", None)
    return tuple(FAMILIES) if declared is None else declared


@click.command("targets")
@click.option("--families", is_flag=True, help="List families of geometries too.")
def targets_command(*, families: bool) -> None:
    """Say what can be fuzzed here, and why not otherwise.

    \b
    Example:
      kvexact targets --families
    """  # noqa: D301
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("target", "here", "class"):
        table.add_column(column, overflow="fold")
    for name in registered_names():
        table.add_row(name, *_about(name))
    console.print(table)
    if families:
        console.print()
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("family")
        table.add_column("what it is there to meet")
        for family in FAMILIES.values():
            table.add_row(family.name, family.summary)
        console.print(table)


def _about(name: str) -> tuple[str, str]:
    try:
        target = find_target(name)
    except UnknownTarget as error:
        return f"no: {error}", ""
    why = why_unavailable(target)
    found = target.target_type
    return f"no: {why}" if why else "yes", f"{found.__module__}:{found.__qualname__}"
