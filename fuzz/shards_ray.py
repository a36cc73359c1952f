"""``kvexact soak-ray``: the shards of a soak on the machines of a Ray cluster, merged into one run.

A shard is a pure function of commit, seed and index. So Ray may run it anywhere, and again where a
machine was lost. All machines need the same installation.
"""

import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from kvexact.fuzz.artefacts import write_atomically
from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.cli_limits import SEED, Duration
from kvexact.fuzz.cli_report import baseline_of, baseline_option, day_of, lines, today_option
from kvexact.fuzz.cli_targets import named_target
from kvexact.fuzz.console import Output
from kvexact.fuzz.report.files import gather, write
from kvexact.fuzz.summary_file import ResultError

#: Exit codes of a soak that left a whole summary.
_WHOLE = (0, 1)
_LINES = 20


@dataclass(frozen=True, slots=True)
class Shard:
    """What came of a shard: its files by name, and the end of what it printed."""

    code: int
    files: dict[str, bytes]
    printed: str


def run_shard(arguments: list[str], shard: str) -> Shard:
    """Soak in a process of its own, in a directory that goes away."""
    with TemporaryDirectory(prefix="kvexact-") as directory:
        command = [sys.executable, "-c", "from kvexact.fuzz.cli import main; main()", "soak"]
        place = ["--shard", shard, "--out", directory]
        ended = subprocess.run(
            [*command, *arguments, *place],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        files = {
            path.name: path.read_bytes() for path in Path(directory).iterdir() if path.is_file()
        }
    return Shard(ended.returncode, files, "\n".join(ended.stdout.splitlines()[-_LINES:]))


@click.command("soak-ray")
@click.option("--target", "target_name", required=True, metavar="NAME", help="As of soak.")
@click.option("--seed", type=SEED, required=True, help="The seed of all shards.")
@click.option("--shards", type=click.IntRange(1, 100_000), required=True, help="How many.")
@click.option("--max-ops", type=click.IntRange(1), help="Of each shard; repeatable.")
@click.option("--max-time", type=Duration(), help="Of each shard; a faster machine does more.")
@click.option(
    "--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Of each."
)
@click.option("--gpus", type=click.FloatRange(0), default=0.0, help="GPUs that a shard occupies.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True)
@click.option("--address", help="The cluster; one on this machine alone if not given.")
@baseline_option
@today_option
def soak_ray_command(
    *,
    target_name: str,
    seed: int,
    shards: int,
    max_ops: int | None,
    max_time: float | None,
    workers: int,
    gpus: float,
    out: Path,
    address: str | None,
    baseline_path: Path | None,
    today: Any,
) -> int:
    """Soak in shards on a Ray cluster, and write one report of all of them.

    \b
    Example:
      kvexact soak-ray --target cpu --seed 7 --shards 16 --max-ops 1000000 --out nightly
    """  # noqa: D301
    if max_ops is None and max_time is None:
        raise BadInput("a shard needs an end; give --max-ops or --max-time")
    named_target(target_name)
    baseline = baseline_of(baseline_path)
    arguments = ["--target", target_name, "--seed", f"{seed}", "--workers", f"{workers}"]
    arguments += ["--max-ops", f"{max_ops}"] if max_ops else []
    arguments += ["--max-time", f"{max_time}"] if max_time else []
    console = Output()
    places = []
    for number, shard in _on_cluster(address, shards, arguments, workers, gpus):
        place = out / f"shard-{number}"
        _save(shard, place)
        if shard.code not in _WHOLE:
            raise BadInput(f"shard {number}/{shards} ended with {shard.code}: {shard.printed}")
        places.append((number, place))
        console.say(f"shard {number}/{shards}: {'sound' if shard.code == 0 else 'not sound'}")
    try:
        result = gather([place for _, place in sorted(places)], out)
    except ResultError as error:
        raise BadInput(str(error)) from error
    if baseline:
        result = baseline.judge(result, day_of(today))
    console.say("\n".join([*lines(result), *map(str, write(result, out))]))
    return 0 if result.sound else 1


def _on_cluster(
    address: str | None, shards: int, arguments: list[str], workers: int, gpus: float
) -> Any:
    """(number, `Shard`) in the order in which they end."""
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise BadInput("Ray is not installed; pip install 'kvexact[ray]'") from error
    ray.init(address=address, log_to_driver=False, logging_level="error")
    try:
        remote = ray.remote(num_cpus=workers, num_gpus=gpus)(run_shard)
        tasks = {remote.remote(arguments, f"{number}/{shards}"): number for number in range(shards)}
        while tasks:
            (done,), _ = ray.wait(list(tasks))
            yield tasks.pop(done), ray.get(done)
    finally:
        ray.shutdown()


def _save(shard: Shard, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, data in shard.files.items():
        write_atomically(place / name, data)
