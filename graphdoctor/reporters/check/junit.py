"""Writes a check as JUnit XML: a suite for each target, a case for each finding; known ones are skipped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from xml.etree import ElementTree as ET

from graphdoctor.reporters.check import wording
from graphdoctor.reporters.look import Look
from graphdoctor.values.check import Check, CheckedFinding, CheckedTarget, Occurrence, fails
from graphdoctor.values.escape import visible


def render(check: Check, look: Look) -> str:
    """One document; no character in it is one that XML forbids."""
    root = ET.Element("testsuites", name="graphdoctor")
    problems = wording.problems(check)
    for target in check.targets:
        own = [problem for problem in problems if problem.target == target.name]
        root.append(_suite(check, target, own))
    _stale(root, check)
    times = [float(time) for suite in root if (time := suite.get("time")) is not None]
    if times:
        root.set("time", f"{sum(times):.3f}")
    return document_of(root)


def document_of(root: ET.Element) -> str:
    """The document of some suites, with their totals."""
    for total in ("tests", "failures", "errors", "skipped"):
        root.set(total, str(sum(int(suite.get(total, "0")) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(check: Check, target: CheckedTarget, problems: list[wording.Problem]) -> ET.Element:
    suite = ET.Element("testsuite", name=visible(target.name))
    for problem in problems:
        kind = "error" if target.fault is not None else "failure"
        case = _case(suite, target, problem.title)
        add_problem(case, kind, problem.message, wording.details(problem))
    for checked in target.findings:
        _finding(suite, check, target, checked)
    if not len(suite):
        _case(suite, target, "graph-safe")
    if target.analysis_s is not None:
        suite.set("time", f"{target.analysis_s:.3f}")
    return counted(suite)


def _finding(
    suite: ET.Element, check: Check, target: CheckedTarget, checked: CheckedFinding
) -> None:
    where = wording.place(check.prefix + checked.path, checked.line)
    case = _case(suite, target, f"{wording.title(checked.finding)} {where}")
    case.set("file", visible(check.prefix + checked.path))
    case.set("line", str(checked.line))
    if not checked.is_new:
        ET.SubElement(case, "skipped", message="accepted in the baseline")
    elif fails(checked.severity, check.fail_on):
        worse = wording.came_with(check, Occurrence(checked, (target.name,)))
        details = [
            where,
            *wording.code_lines(checked.finding),
            *([f"With it: {worse}"] if worse else []),
        ]
        fix, *code = wording.fix_lines(checked.finding)
        details += [f"Fix: {fix}", *code]
        add_problem(case, "failure", checked.finding.message, details)
    else:
        ET.SubElement(case, "system-out").text = visible(checked.finding.message)


def _case(suite: ET.Element, target: CheckedTarget, name: str) -> ET.Element:
    return add_case(suite, f"graphdoctor.{visible(target.name)}", name)


def add_case(suite: ET.Element, classname: str, name: str) -> ET.Element:
    """A case whose name is the only one of its suite: what reads these files keeps one of a name.

    It has no time of its own: one analysis, whose time its suite has, finds all of them.
    """
    taken = {case.get("name") for case in suite}
    unique = next(one for n in count(1) if (one := f"{name} ({n})" if n > 1 else name) not in taken)
    return ET.SubElement(suite, "testcase", {"classname": classname, "name": unique})


def add_problem(case: ET.Element, kind: str, message: str, details: Sequence[str]) -> None:
    """Let a case fail."""
    problem = ET.SubElement(case, kind, message=visible(message), type="graphdoctor")
    problem.text = "\n".join(details)


def _stale(root: ET.Element, check: Check) -> None:
    if not check.stale:
        return
    suite = ET.SubElement(root, "testsuite", name="baseline")
    for entry in check.stale:
        name = visible(f"{entry.rule} {entry.path} {entry.source} ({entry.target})")
        case = add_case(suite, "graphdoctor.check.baseline", name)
        if check.stale_fails:
            add_problem(case, "failure", f"no longer occurs: {wording.PRUNE} drops it", ())
    counted(suite)


def counted(suite: ET.Element) -> ET.Element:
    """The suite, with the numbers of its cases."""
    suite.set("tests", str(len(suite)))
    for total, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(total, str(len(suite.findall(f"testcase/{tag}"))))
    return suite
