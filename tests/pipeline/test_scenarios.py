"""Each of PyTorch's 79 scenarios has a row in docs/scenarios.md: a target with its verdict, a test, or a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import graphdoctor
from tests.scenarios import TARGETS
from tests.support.diagnosing import marked

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| S\d\d ", line)
]
NAMED = re.compile(r"`((?:s\d\d_\w+)|(?:tests/\w+/\w+\.py::\w+))`")
# Where a row has several targets, or a target and a test beside it, and they differ.
VERDICTS = {
    "s11_an_event_of_the_outside_without_external": "unsafe",
    "s36_a_number_stored_by_mask": "safe",
    "s36_values_stored_at_an_index": "safe",
    "s46_scalar_of_the_cpu_passed_by_value": "safe",
    "s77_custom_operator_that_waits": "unsafe",
    "s77_custom_operator_of_another_kind": "unknown",
}


def test_every_scenario_has_one_row_in_order() -> None:
    assert [row[0] for row in ROWS] == [f"S{number:02}" for number in range(1, 80)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_what_shows_it_or_says_why_nothing_does(row: list[str]) -> None:
    _, upstream, what, here, shown = row
    assert upstream and what
    names = NAMED.findall(shown)
    assert bool(names) == (here != "none")
    if here == "none":
        assert len(shown) > 20
    for name in names:
        path, _, test = name.partition("::")
        if test:
            assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")
        else:
            assert name in TARGETS


def test_every_target_is_in_some_row() -> None:
    assert {name for row in ROWS for name in NAMED.findall(row[4]) if "::" not in name} == set(
        TARGETS
    )


def expected(name: str) -> str:
    if name in VERDICTS:
        return VERDICTS[name]
    row = next(row for row in ROWS if name in NAMED.findall(row[4]))
    return re.split(r"[,; ]", row[3])[0]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.filterwarnings("ignore")
def test_the_verdict_is_the_page_s_and_each_finding_is_on_its_line(name: str) -> None:
    torch.manual_seed(0)
    report = graphdoctor.analyze(TARGETS[name], device="emulated", strategies=())
    assert report.verdict == expected(name), report.reason
    found = {
        (finding.rule, finding.location.line if finding.location else 0)
        for finding in report.findings
        if not finding.rule.startswith("GD3")
    }
    assert found == marked(TARGETS[name])
