"""The fuzz tests: ``pytest -n auto fuzz``, or ``pytest --pyargs kvexact.fuzz`` where it is installed.

An item is one shard of one family on one target; ``--kv-target`` says which targets.
"""

import json
from collections.abc import Callable

import pytest

from kvexact.fuzz import plugin
from kvexact.fuzz.artefacts import save
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.finding import find
from kvexact.fuzz.items import Item, items_of
from kvexact.fuzz.machine import run_item
from kvexact.fuzz.plugin_report import told
from kvexact.fuzz.targets import NamedTarget, why_unavailable

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
    target, family = item.target, item.family
    counts = Counts()
    journal = plugin.journal(pytestconfig)
    journal.target = target.name
    failed = run_item(
        target.target_type(),
        family,
        item.seed,
        pytestconfig.option.kv_examples or plugin.profile(pytestconfig).examples,
        counts,
        journal=journal,
    )
    part = {"target": target.name, "family": family.name, "counts": counts.to_json()}
    record_property("kvexact_seed", item.seed)
    record_property("kvexact_counts", json.dumps(part))
    if failed is None:
        return
    finding = find(target.target_type, target.name, family.name, *failed)
    saved = save(finding, target, plugin.directory(pytestconfig))
    record_property("kvexact_trace", str(saved.trace))
    record_property("kvexact_finding", json.dumps(told(finding, saved.command)))
    pytest.fail(f"{finding.failure.signature}: {finding.failure.lines[0]}", pytrace=False)
