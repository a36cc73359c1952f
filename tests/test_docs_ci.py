"""docs/ci.md: its workflows are YAML, its baseline is one, and its commands exist as written."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from kvexact.fuzz import baseline, plugin
from kvexact.fuzz.cli import main

TEXT = (Path(__file__).parents[1] / "docs" / "ci.md").read_text()
CONTEXT = click.Context(main)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def scripts() -> Iterator[str]:
    """What the workflows and the shell blocks run."""
    yield from blocks("sh")
    for block in blocks("yaml"):
        for job in yaml.safe_load(block)["jobs"].values():
            yield from (step["run"] for step in job["steps"] if "run" in step)


def commands(program: str) -> list[list[str]]:
    """Words of each command of a program, as far as a pipe or a redirection."""
    joined = [line for script in scripts() for line in script.replace("\\\n", " ").splitlines()]
    words = [
        shlex.split(re.sub(r"\$\{\{.*?\}\}", "1", re.split(r"\|\||>", line)[0])) for line in joined
    ]
    return [line for line in words if line and line[0] == program]


def test_there_are_two_workflows() -> None:
    names = [yaml.safe_load(block) for block in blocks("yaml")]
    assert [one["name"] for one in names] == ["kvexact", "kvexact nightly"]
    for workflow in names:
        for job in workflow["jobs"].values():
            assert job["runs-on"]
            assert all(("uses" in step) != ("run" in step) for step in job["steps"])


@pytest.mark.parametrize("words", commands("kvexact"), ids=" ".join)
def test_a_command_is_accepted_as_written(words: list[str]) -> None:
    command, rest = main.get_command(CONTEXT, words[1]), words[2:]
    assert command is not None, words[1]
    if isinstance(command, click.Group):
        command, rest = command.get_command(CONTEXT, rest[0]), rest[1:]
        assert command is not None, words[2]
    command.make_context(words[1], rest)


@pytest.mark.parametrize("words", commands("pytest"), ids=" ".join)
def test_options_of_the_plugin_exist(words: list[str]) -> None:
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    (group,) = [group for group in parser._groups if group.name == "kvexact"]
    known = {name for option in group.options for name in option.names()}
    assert {word for word in words if word.startswith("--kv-")} <= known


def test_the_baseline_is_one() -> None:
    (block,) = blocks("toml")
    (entry,) = baseline.parse(block.encode())
    assert entry.target == "cuda"
