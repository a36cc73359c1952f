"""``kvexact vllm``: install releases, list them, and fuzz them all."""

import os
from pathlib import Path

import click

from kvexact.fuzz.artefacts import (
    ROOT,
    make_run_directory,
    write_atomically,
)
from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.cli_targets import able_target, in_child, say_remarks, target_option
from kvexact.fuzz.cli_trace import trace_and_target
from kvexact.fuzz.console import Output
from kvexact.fuzz.vllm_matrix import row
from kvexact.impl.adapters.vllm.home import HOME_VARIABLE, Home, InstallError
from kvexact.impl.adapters.vllm.process import end_all
from kvexact.refmodel.spec import Refused

_TARGETS = ("vllm-views", "vllm-offload", "vllm-simple")


@click.group("vllm")
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Where releases are kept; else ${HOME_VARIABLE}, else the user's cache.",
)
def vllm_command(home: Path | None) -> None:
    """Releases of vLLM as targets, on a machine without a GPU.

    Its own Python code runs, in a process a release; installing the first takes about a minute.

    \b
    Example:
      kvexact vllm install 0.33.0
      kvexact fuzz --target vllm-offload@0.33.0
    """  # noqa: D301
    if home is not None:
        os.environ[HOME_VARIABLE] = str(home.absolute())


@vllm_command.command("install")
@click.argument("releases", nargs=-1, metavar="RELEASE...")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A checkout of vLLM, used as it is.",
)
@click.option("--name", default="source", show_default=True, help="What a checkout is called.")
def install_command(releases: tuple[str, ...], source: Path | None, name: str) -> None:
    """Set releases up: `.py` files of published wheels, beside one environment.

    \b
    Example:
      kvexact vllm install 0.25.1 0.33.0
      kvexact vllm install --source ~/vllm
    """  # noqa: D301
    if not releases and source is None:
        raise BadInput("nothing to install; name releases such as 0.33.0, or --source")
    home, console = Home.default(), Output()
    try:
        home.path.mkdir(parents=True, exist_ok=True)
        home.make_environment(console.say)
        for release in releases:
            home.install(release, console.say)
        if source is not None:
            home.link(name, source)
    except (InstallError, OSError) as error:
        raise BadInput(str(error)) from error


@vllm_command.command("list")
def list_command() -> None:
    """Say what is installed.

    \b
    Example:
      kvexact vllm list
    """  # noqa: D301
    home, console = Home.default(), Output()
    console.say(f"in {home.path}" + ("" if home.has_environment else ": no environment"))
    for release in home.releases():
        console.say(release)


@vllm_command.command("matrix")
@click.option("--releases", metavar="A,B", help="Releases, also with a mend undone; else all.")
@click.option("--targets", metavar="A,B", default=",".join(_TARGETS), show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="How many.")
@click.option("--ops", type=click.IntRange(1), default=600, show_default=True, help="Acted, each.")
@click.option(
    "--artifacts",
    type=click.Path(file_okay=False, path_type=Path),
    default=ROOT,
    show_default=True,
    help="Where the run's directory is made.",
)
def matrix_command(
    *, releases: str | None, targets: str, seed: int, seeds: int, ops: int, artifacts: Path
) -> int:
    """Fuzz every release with every target and family: sound, or known and new findings.

    A known finding is one of `known.json`. Where one was not met that a release should have, its
    trace is replayed: it still fails, or the finding is gone, which fails the command like a new
    one. Then, what the release was seen with, and what of it was never met.

    \b
    Example:
      kvexact vllm matrix --releases 0.25.1,0.26.0,0.29.0+undo-54021 --seeds 2
    """  # noqa: D301
    wanted = releases.split(",") if releases else Home.default().releases()
    if not wanted:
        raise BadInput("no release of vLLM is installed; run: kvexact vllm install 0.33.0")
    console, directory = Output(), make_run_directory(artifacts, seed)
    wrong = 0
    try:
        for release in wanted:
            named = [able_target(f"{kind}@{release}") for kind in targets.split(",")]
            say_remarks(console, *named)
            for target in named:
                with in_child(target):
                    wrong += row(console, directory, target, range(seed, seed + seeds), ops)
            end_all()
    finally:
        directory.remove_if_empty()
    return 1 if wrong else 0


@vllm_command.command("reproduce")
@click.argument("file", type=click.Path(path_type=Path))
@target_option
@click.option("--cuda", is_flag=True, help="For a machine with a GPU: without stand-ins.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to write it; printed if not given.",
)
def reproduce_command(
    *, file: Path, target_name: str | None, cuda: bool, output: Path | None
) -> int:
    """Write a failing trace as a program that needs its release of vLLM alone, no kvexact.

    It ends with 1 and says which bytes are wrong, or with 0 and "sound".

    \b
    Example:
      kvexact vllm reproduce artifacts/*/fact-open-fact-regions-*.json -o regions.py
    """  # noqa: D301
    from kvexact.fuzz.vllm_reproducer import reproducer  # with torch, as its programs have

    trace, target = trace_and_target(file, target_name)
    able_target(target.name)
    try:
        with in_child(target):
            text = reproducer(trace, target, "cuda" if cuda else "cpu")
    except Refused as error:
        raise BadInput(f"{file}: {error.text}") from error
    finally:
        end_all()
    if output is None:
        click.echo(text, nl=False)
        return 0
    try:
        write_atomically(output, text.encode())
    except OSError as error:
        raise BadInput(f"{output}: {error.strerror}; name another file with -o") from error
    return 0
