"""A result as JUnit XML, which most CI systems show: a test for each family and each failure."""

import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

from kvexact.fuzz.results import Found, Part, Result

#: What XML 1.0 cannot hold.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(result: Result) -> bytes:
    """A result as JUnit XML: what is new fails, what a baseline accepts is skipped."""
    suite = ET.Element("testsuite", name="kvexact")
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(result):
        ET.SubElement(properties, "property", name=name, value=_clean(value))
    for part in result.parts:
        _add_family(suite, part, result)
    for found in result.findings:
        _add_finding(suite, found)
    _add_whole(suite, result)
    for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("time", f"{sum(run.seconds for run in result.runs):.3f}")
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    written: bytes = ET.tostring(root, "utf-8", xml_declaration=True)
    return written + b"\n"


def _properties(result: Result) -> Iterator[tuple[str, str]]:
    total = result.total
    several = len(result.runs) > 1
    for number, run in enumerate(result.runs):
        prefix = f"run{number}." if several else ""
        about = {
            "target": run.target,
            "chooser": run.chooser,
            "seed": str(run.seed),
            "shard": run.shard,
            "commit": run.commit,
            "kvexact": run.versions.kvexact,
            "python": run.versions.python,
            "numpy": run.versions.numpy,
            "torch": run.versions.torch,
            "gpu": run.versions.gpu,
            "driver": run.versions.driver,
        }
        yield from ((prefix + name, value) for name, value in about.items() if value)
    yield "ops", str(total.acted)
    yield "geometries", str(total.geometries.total())
    yield "compared_bytes", str(total.compared_bytes)


def _add_family(suite: ET.Element, part: Part, result: Result) -> None:
    case = ET.SubElement(suite, "testcase", classname=_class(part.target), name=part.family)
    properties = ET.SubElement(case, "properties")
    counts = part.counts
    for name, value in (("ops", counts.acted), ("geometries", counts.geometries.total())):
        ET.SubElement(properties, "property", name=name, value=str(value))
    start = f"{part.target}, {part.family}: "
    lines = [line.removeprefix(start) for line in result.complaints if line.startswith(start)]
    if lines:
        _add(case, "failure", "proves less than it claims", lines)


def _add_finding(suite: ET.Element, found: Found) -> None:
    case = ET.SubElement(
        suite, "testcase", classname=_class(found.target) + ".failures", name=_clean(found.name)
    )
    lines = [*found.lines, f"  {found.count:,} examples, {found.often}, {found.ops} ops"]
    if found.command:
        lines.append(f"reproduce: {found.command}")
    if found.accepted is None:
        _add(case, "failure", f"{found.family}: {found.name}", lines)
    else:
        accepted = found.accepted
        why = f"accepted until {accepted.until}: {accepted.why} {accepted.link}".rstrip()
        _add(case, "skipped", why, lines)


def _add_whole(suite: ET.Element, result: Result) -> None:
    """The run itself: that it did all it was asked for, and was not empty."""
    case = ET.SubElement(suite, "testcase", classname="kvexact", name="run")
    ended = [f"{run.target} {run.shard}: {run.ended}" for run in result.runs if run.ended]
    families = tuple(f"{part.target}, {part.family}: " for part in result.parts)
    empty = [line for line in result.complaints if not line.startswith(families)]
    if ended:
        _add(case, "error", "ended early", ended)
    elif empty:
        _add(case, "failure", "proves less than it claims", empty)
    if result.notes:
        ET.SubElement(case, "system-out").text = _clean("\n".join(result.notes))


def _add(case: ET.Element, tag: str, message: str, lines: list[str]) -> None:
    ET.SubElement(case, tag, message=_clean(message)).text = _clean("\n".join(lines))


def _class(target: str) -> str:
    """A target's name as a class name: CI systems split these at dots."""
    return f"kvexact.{_clean(target).replace(':', '.')}"


def _clean(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
