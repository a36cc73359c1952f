"""The pytest plugin: options, header, one summary over all workers; silent where nothing fuzzes."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvexact.fuzz.artefacts import RunDirectory
    from kvexact.fuzz.items import Profile
    from kvexact.fuzz.journal import Journal
    from kvexact.fuzz.targets import NamedTarget

_HERE = Path(__file__).resolve().parent
_PROFILES = ("default", "quick", "nightly")


@dataclass
class Session:
    """What the plugin keeps in a process.

    Attributes:
        parts: what each item did; filled in the process that reports.
        findings: what items found, in the order in which they came in.
        known: what items of this process found, by target and signature; reduced once.
        worker: name of this process among the workers of pytest-xdist; "main" without them.
        directory: the run's; ``made`` in the process that made it.
        lost: targets whose device this process lost for good.
    """

    worker: str = "main"
    parts: list[Mapping[str, Any]] = field(default_factory=list)
    findings: list[Mapping[str, Any]] = field(default_factory=list)
    known: dict[tuple[str, ...], Mapping[str, Any]] = field(default_factory=dict)
    directory: Path | None = None
    made: "RunDirectory | None" = None
    journal: "Journal | None" = None
    lost: set[str] = field(default_factory=set)


SESSION = pytest.StashKey[Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all of them --kv-…."""
    group = parser.getgroup("kvexact", "fuzzing paged KV caches (kvexact)")
    group.addoption(
        "--kv-target",
        action="append",
        metavar="NAME",
        help="fuzz this target, a registered one or module:Class; may be repeated",
    )
    group.addoption("--kv-profile", choices=_PROFILES, help="how much to fuzz; as usual: default")
    group.addoption(
        "--kv-seed", type=int, metavar="N", help="draw from this seed (default 0; nightly: drawn)"
    )
    group.addoption("--kv-examples", type=_at_least_one, metavar="N", help="examples in each item")
    group.addoption(
        "--kv-artifacts",
        metavar="DIR",
        help="save findings in a new folder inside DIR (default: artifacts)",
    )


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def pytest_configure(config: pytest.Config) -> None:
    """Resolve what the options say, once for all workers."""
    config.stash[SESSION] = session = Session()
    workerinput = getattr(config, "workerinput", None)
    if workerinput is None:
        config.pluginmanager.register(_Reporter(config), "kvexact-reporter")
    if workerinput is not None:
        session.worker = workerinput["workerid"]
        directory = workerinput.get("kvexact_directory")
        session.directory = Path(directory) if directory else None
    elif _wanted(config):
        from kvexact.fuzz.targets import UnknownTarget, try_import

        if config.option.kv_seed is None:
            config.option.kv_seed = secrets.randbits(32) if profile(config).draws_seed else 0
        try:
            for name in config.option.kv_target or ():
                try_import(name)
            targets(config)
        except (UnknownTarget, ValueError) as error:
            raise pytest.UsageError(str(error)) from None


def _wanted(config: pytest.Config) -> bool:
    """Whether this run is going to collect the fuzz tests, as far as its arguments tell."""
    option = config.option
    if option.kv_target or option.kv_profile or option.kv_examples or option.kv_artifacts:
        return True
    return option.kv_seed is not None or any(_leads_here(config, arg) for arg in config.args)


def _leads_here(config: pytest.Config, arg: str) -> bool:
    name = arg.split("::", maxsplit=1)[0]
    if config.option.pyargs and name.split(".")[0] == "kvexact":
        return True
    path = (config.invocation_params.dir / name).resolve()
    if _HERE.is_relative_to(path):
        between = _HERE.relative_to(path).parts
        return "site-packages" not in between
    return path.is_relative_to(_HERE)


def profile(config: pytest.Config) -> "Profile":
    """The profile of this run."""
    from kvexact.fuzz.items import PROFILES

    return PROFILES[config.option.kv_profile or "default"]


def targets(config: pytest.Config) -> "list[NamedTarget]":
    """The targets of this run.

    Raises:
        UnknownTarget: there is none of such a name.
        ValueError: no family, or one that does not exist, is left for a target.
    """
    from kvexact.fuzz.items import families_of
    from kvexact.fuzz.targets import DEFAULT_TARGETS, find_target

    names = dict.fromkeys(config.option.kv_target or DEFAULT_TARGETS)
    found = [find_target(name) for name in names]
    for target in found:
        try:
            families_of(target.target_type)
        except ValueError as error:
            raise ValueError(f"target {target.name!r}: {error}") from None
    return found


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What is fuzzed, how much of it, and with what."""
    if not _wanted(config):
        return []
    option = config.option
    names = ", ".join(target.name for target in targets(config))
    versions = ", ".join(f"{name} {version(name)}" for name in ("hypothesis", "numpy", "torch"))
    name = option.kv_profile or "default"
    size = f"profile {name}, seed {option.kv_seed}"
    return [f"kvexact {version('kvexact')}: target {names}; {size}; {versions}"]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Build kernels and make the run's directory, before there are workers."""
    config = session.config
    if hasattr(config, "workerinput") or not _wanted(config) or config.option.collectonly:
        return
    from kvexact.fuzz.targets import why_unavailable

    for target in targets(config):
        why_unavailable(target)
    directory(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where to save."""
    made = node.config.stash[SESSION].directory
    node.workerinput["kvexact_directory"] = str(made) if made else None


def directory(config: pytest.Config) -> Path:
    """The run's directory, made when first asked for."""
    session = config.stash[SESSION]
    if session.directory is None:
        from kvexact.fuzz.artefacts import ROOT, make_run_directory

        root = Path(config.option.kv_artifacts or ROOT)
        try:
            session.made = make_run_directory(root, config.option.kv_seed or 0)
        except OSError as error:
            raise pytest.UsageError(
                f"{root}: no directory can be made there ({error.strerror}); "
                f"name another one with --kv-artifacts"
            ) from None
        session.directory = session.made.path
    return session.directory


def journal(config: pytest.Config) -> "Journal":
    """This process's journal, made when first asked for.

    Raises:
        OSError: there is no room for it.
    """
    session = config.stash[SESSION]
    if session.journal is None:
        from kvexact.fuzz.journal import Journal

        path = directory(config) / f"{session.worker}.journal"
        try:
            session.journal = Journal(path)
        except OSError:
            path.unlink(missing_ok=True)
            raise
    return session.journal


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no empty file and no empty directory."""
    session = config.stash.get(SESSION, None)
    if session is None:
        return
    if session.journal is not None:
        session.journal.close()
    if session.made is not None:
        session.made.remove_if_empty()


class _Reporter:
    """Collects what items tell, in the process that reports, and says it once at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._session = config.stash[SESSION]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            told = dict(report.user_properties)
            if "kvexact_counts" in told:
                self._session.parts.append(json.loads(str(told["kvexact_counts"])))
            if "kvexact_findings" in told:
                self._session.findings += json.loads(str(told["kvexact_findings"]))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: Any) -> None:
        """A worker died; its journal says what it was doing."""
        if self._session.directory is not None:
            from kvexact.fuzz.plugin_report import recovered

            worker = report.node.gateway.id
            found = recovered(self._session.directory, worker, targets(self._config))
            if found is not None:
                self._session.findings.append(found)
                report.longrepr = f"{report.longrepr}\n{found['message']}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run that proves nothing has failed."""
        if self._session.parts and session.exitstatus == pytest.ExitCode.OK:
            from kvexact.fuzz.plugin_report import too_little

            told = self._session.parts, self._session.findings
            if too_little(*told, targets(self._config)):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._session.parts or self._session.findings:
            from kvexact.fuzz.plugin_report import write

            told = self._session.parts, self._session.findings
            write(terminalreporter, *told, targets(self._config))
