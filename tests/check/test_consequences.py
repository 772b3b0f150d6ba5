"""One cause, one error: figures that got worse together with a new finding are told with it."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from graphdoctor.check.baseline import Accepted, Baseline, make
from graphdoctor.reporters.formats import names_of, written_as
from graphdoctor.reporters.look import Look
from graphdoctor.values.check import Check
from graphdoctor.values.finding import Finding
from tests.support.checking import checked, finding, report
from tests.support.reports import ESTIMATE

# Better than the hand-built report without a capture, in everything but graphs.
LESS = Accepted("net", 0, 0, 0, 1.0, "safe", "cuda", "2.13.0")
BETTER: Baseline = make([], [LESS])


def failing(*findings: Finding, **settings: object) -> Check:
    return checked({"net": report(*findings, captures=(), estimate=ESTIMATE)}, BETTER, **settings)


def alone(check: Check) -> set[str]:
    """The figures that are errors of their own."""
    return {one.figure for target in check.targets for one in target.breaches if not one.belongs_to}


def test_waits_launches_and_coverage_belong_to_the_new_finding() -> None:
    check = failing(finding())
    (target,) = check.targets
    assert {one.figure for one in target.breaches} == {"syncs", "launches", "coverage"}
    assert {one.belongs_to for one in target.breaches} == {target.findings[0].fingerprint}
    assert check.exit_code == 1


def test_without_a_new_finding_they_stand_for_themselves() -> None:
    check = failing()
    assert alone(check) == {"launches", "coverage"} and check.exit_code == 1


def test_more_waits_than_the_findings_have_stand_for_themselves() -> None:
    """The wait is a known finding's, the new one does not make the host wait."""
    assert alone(failing(finding(rule="GD204", effect="replay-is-wrong"))) == set()
    known = finding(9, source="known.item()", count=3)
    from graphdoctor.check.gate import Outcome, entries_of
    from tests.support.checking import project, target

    entries = entries_of(Outcome(target(), report(known)), project())
    check = checked({"net": report(known, finding(), captures=())}, make(entries, [LESS]))
    assert alone(check) == {"syncs"}


def test_finding_that_does_not_fail_the_check_takes_nothing_on() -> None:
    check = failing(finding(certainty="unknown"), fail_on="error")
    assert alone(check) == {"syncs", "launches", "coverage"} and check.exit_code == 1


def test_slow_replay_takes_no_coverage_on() -> None:
    check = failing(finding(rule="GD302"), fail_on="note")
    assert "coverage" in alone(check)


@pytest.mark.parametrize("name", sorted({*names_of("Check")} - {"json"}))
def test_every_format_has_one_error_that_says_all(name: str) -> None:
    text = written_as(name, failing(finding()), Look(width=200))
    said = json.dumps(json.loads(text)) if name in {"sarif", "gitlab"} else text
    assert said.count("more than in the baseline") == 2
    assert "worse than the baseline" not in said


def test_counts_of_formats_are_one() -> None:
    check = failing(finding())
    junit = ET.fromstring(written_as("junit", check, Look()))
    assert junit.get("failures") == "1"
    lines = written_as("github", check, Look()).splitlines()
    assert [line.split(" ")[0] for line in lines if line.startswith("::")] == ["::error"]
    assert lines[-1] == "graphdoctor: failed: 1 new finding in 1 target"


def test_github_annotates_findings_before_figures() -> None:
    new = finding(certainty="unknown")
    text = written_as("github", failing(new, fail_on="error"), Look())
    assert text.index("line=3,") < text.index("worse than the baseline")
