"""The fuzz tests: ``pytest -n auto fuzz``; installed, ``pytest --pyargs kvexact.fuzz``.

An item is one shard of one family on one target; ``--kv-target`` says which targets.
"""

import json
from collections.abc import Callable, Iterator

import pytest

from kvexact.fuzz import plugin
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.finding import as_it_is, find, is_lost
from kvexact.fuzz.items import Item, items_of
from kvexact.fuzz.journal import Journal
from kvexact.fuzz.machine import failures
from kvexact.fuzz.plugin_report import Part, keep, no_room
from kvexact.fuzz.self_check import missed
from kvexact.fuzz.targets import NamedTarget, why_unavailable
from kvexact.impl.target import Target, Unavailable

Record = Callable[[str, object], None]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each target that cannot run, and for each target, family and shard otherwise."""
    config = metafunc.config
    shards, seed = plugin.profile(config).shards, config.option.kv_seed or 0
    found: list[Item | NamedTarget] = []
    for target in plugin.targets(config):
        found += [target] if why_unavailable(target) else items_of(target, shards, seed)
    metafunc.parametrize("item", found, ids=[item.name for item in found])


def test_fuzz(
    item: Item | NamedTarget, record_property: Record, pytestconfig: pytest.Config
) -> None:
    if isinstance(item, NamedTarget):
        pytest.fail(f"{item.name}: {why_unavailable(item)}", pytrace=False)
    blind = missed()
    if blind:
        pytest.fail(f"the harness is blind to {'; '.join(blind)}", pytrace=False)
    target, family, counts = item.target, item.family, Counts()
    session = pytestconfig.stash[plugin.SESSION]
    if target.name in session.lost:
        pytest.fail(f"{target.name}: an item before this one lost the device", pytrace=False)
    try:
        made = target.make()
    except Unavailable as error:
        raise pytest.fail.Exception(f"{target.name}: {error}", pytrace=False) from None
    try:
        journal = plugin.journal(pytestconfig)
    except OSError as error:
        text = no_room(plugin.directory(pytestconfig), error)
        raise pytest.fail.Exception(text, pytrace=False) from None
    journal.target = target.name
    found: dict[tuple[str, ...], Part] = {}
    messages = []
    try:
        found.update(_findings(item, made, counts, journal, pytestconfig))
    except Unavailable as error:  # later than it should say so
        messages.append(f"{target.name}: {error}")
    did = {"target": target.name, "family": family.name, "counts": counts.to_json()}
    about = {"target": target.name, "family": family.name, "seed": item.seed}
    numbers = {"ops": counts.acted, "geometries": counts.geometries.total()}
    for name, value in {**about, **numbers}.items():
        record_property(f"kvexact_{name}", value)
    record_property("kvexact_counts", json.dumps(did, sort_keys=True))
    if found:
        record_property("kvexact_findings", json.dumps(list(found.values())))
    messages += [part["message"] for part in found.values()]
    if messages:
        pytest.fail("\n".join(messages), pytrace=False)


def _findings(
    item: Item, made: Target, counts: Counts, journal: Journal, config: pytest.Config
) -> Iterator[tuple[tuple[str, ...], Part]]:
    """What an item finds, by target and signature; ends where the device is lost."""
    target, family, session = item.target, item.family, config.stash[plugin.SESSION]
    examples = config.option.kv_examples or plugin.profile(config).examples
    for run, wrong in failures(made, family, item.seed, examples, counts, journal=journal):
        failure = explain_failure(run, wrong)
        key = (target.name, *failure.signature)
        lost = is_lost(target.make, run, failure)
        if key not in session.known:
            finding = (
                as_it_is(target.name, family.name, run, failure)
                if lost
                else find(target.make, target.name, family.name, run, wrong)
            )
            session.known[key] = keep(finding, target, plugin.directory(config))
        yield key, session.known[key]
        if lost:
            session.lost.add(target.name)
            return
