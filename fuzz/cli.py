"""The command line. Commands are loaded when they are called, so that ``--help`` is quick."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from kvexact.fuzz.reserve import FULL

_COMMANDS = {
    "targets": (
        "kvexact.fuzz.cli_targets:targets_command",
        "What can be fuzzed here, and why not otherwise.",
    ),
    "fuzz": (
        "kvexact.fuzz.cli_fuzz:fuzz_command",
        "Look for disagreements between a target and the model.",
    ),
    "soak": ("kvexact.fuzz.cli_soak:soak_command", "Fuzz for hours, isolated, and leave a report."),
    "replay": (
        "kvexact.fuzz.cli_trace:replay_command",
        "Run saved traces again and say what became of them.",
    ),
    "reduce": ("kvexact.fuzz.cli_trace:reduce_command", "Make a failing trace minimal."),
    "show": ("kvexact.fuzz.cli_show:show_command", "Draw a geometry, or the failure of a trace."),
    "vectors": ("kvexact.fuzz.cli_vectors:vectors_command", "Test vectors for any language."),
    "soak-ray": (
        "kvexact.fuzz.shards_ray:soak_ray_command",
        "Soak in shards on a Ray cluster.",
    ),
    "corpus": ("kvexact.fuzz.cli_corpus:corpus_command", "Keep traces that replay as tests."),
    "report": ("kvexact.fuzz.cli_report:report_command", "Write the report of one run or several."),
    "vllm": ("kvexact.fuzz.cli_vllm:vllm_command", "Releases of vLLM as targets."),
    "power": ("kvexact.fuzz.power:power", "Fuzz every planted fault and say which are found."),
    "bench": ("kvexact.fuzz.bench:bench", "Measure what model and comparison cost."),
}

_CANNOT, _INTERRUPTED = 2, 130
#: A longer complaint is shown by its beginning and its end.
_LINE_CHARS, _END_CHARS = 2000, 400

_EPILOG = """\b
Exit codes:
  0    sound: no failure was found
  1    a failure was found, or the run proves less than it claims
  2    bad input, or a target that cannot run
  130  interrupted
"""


class BadInput(click.ClickException):
    """Input that cannot be used: one line that names the value, the rule and the fix."""

    exit_code = _CANNOT


class _ReaderLeft(Exception):
    """Nobody reads the output any more."""


class Commands(click.Group):
    """Loads a command when it is called; each error is one line, each exit code documented."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order in which they are shown."""
        return [*_COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, imported from its module."""
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List all commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse; ``--help`` is printed here."""
        with _reader():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _reader():
            return super().invoke(ctx)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line and exit."""
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
            if sys.stdout is not None:  # it is None where it was closed before the start
                sys.stdout.flush()
        except click.ClickException as error:
            _complain(error)
            code = _CANNOT
        except (click.Abort, KeyboardInterrupt):
            code = _INTERRUPTED
        except (_ReaderLeft, BrokenPipeError):
            # Say nothing more either when Python flushes the output at its exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = _CANNOT
        except Exception as error:  # noqa: BLE001 - Python's own exit code means a failure found
            _complain_of(error)
            code = _CANNOT
        sys.exit(code if isinstance(code, int) else 0)


def _complain_of(error: Exception) -> None:
    if isinstance(error, OSError) and error.errno in FULL:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"kvexact: {where}{error.strerror}; free some room, then run again", err=True)
    else:
        click.echo(f"kvexact has a bug:\n{traceback.format_exc()}", err=True)


@contextmanager
def _reader() -> Iterator[None]:
    """Hide a broken pipe from click, whose answer is an exit code that means a failure here."""
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderLeft from error


def one_line(error: click.ClickException) -> str:
    """What is wrong, in one line of a sane length: a file may hold names of any."""
    text = " ".join(error.format_message().split())
    short = (
        text if len(text) <= _LINE_CHARS else f"{text[: _LINE_CHARS // 2]} … {text[-_END_CHARS:]}"
    )
    return short.encode(errors="backslashreplace").decode()


def _complain(error: click.ClickException) -> None:
    text = one_line(error)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text = f"{text.rstrip('.')}; see {error.ctx.command_path} --help"
    click.echo(f"kvexact: {text}", err=True)


@click.command(
    cls=Commands,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="kvexact", message="%(prog)s %(version)s")
def main() -> None:
    """Find byte-level bugs in paged KV-cache code.

    An exact model and a target run the same operations side by side; every byte is compared after
    every one of them, and a difference is reduced to a few lines.

    \b
    Example: fuzz the built-in engine for eight minutes, on two processes
      kvexact fuzz --target cpu --max-time 8m --workers 2
    """  # noqa: D301 - \b is click's mark for text that keeps its line ends
