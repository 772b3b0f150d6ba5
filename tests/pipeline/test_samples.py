"""Every sample model gets the diagnosis that its own docstring announces."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from graphdoctor.pipeline import analyze_target
from graphdoctor.values.captures import CaptureOutcome
from graphdoctor.values.finding import Finding
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import Report

SAMPLES = Path(__file__).parents[2] / "sample_models"
EXPECT = re.compile(
    r"^Expect(?:\[(?P<variant>\w+)\])?: "
    r"verdict=(?P<verdict>safe|partly-safe|unsafe); "
    r"rules=(?P<rules>none|GD\d{3}(?:,GD\d{3})*); "
    r"mode=(?P<mode>inference|training)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Expectation:
    """What one variant of a sample says about itself."""

    file: Path
    variant: str  # "" for the file's default target
    verdict: str
    rules: frozenset[str]
    mode: str

    @property
    def spec(self) -> str:
        return f"{self.file}:{self.variant}" if self.variant else str(self.file)

    @property
    def id(self) -> str:
        return f"{self.file.stem}:{self.variant}" if self.variant else self.file.stem


def expectations_of(file: Path) -> list[Expectation]:
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return [
        Expectation(
            file=file,
            variant=match["variant"] or "",
            verdict=match["verdict"],
            rules=frozenset(() if match["rules"] == "none" else match["rules"].split(",")),
            mode=match["mode"],
        )
        for match in EXPECT.finditer(docstring)
    ]


FILES = sorted(SAMPLES.glob("*.py"))
EXPECTATIONS = [expectation for file in FILES for expectation in expectations_of(file)]
# A sample's tests run one after the other, so that one process analyses it, and once.
every_sample = pytest.mark.parametrize("expected", EXPECTATIONS, ids=lambda e: e.id, scope="module")


@cache
def report_of(spec: str) -> Report:
    return analyze_target(
        spec, AnalyzeOptions(device="emulated", strategies=()), lambda stage: None
    )


def sample_report(name: str, variant: str = "") -> Report:
    spec = str(SAMPLES / f"{name}.py")
    return report_of(f"{spec}:{variant}" if variant else spec)


def hazards(report: Report) -> list[Finding]:
    """The findings that say unsafe: GD3xx only say that a graph would not pay."""
    return [finding for finding in report.findings if not finding.rule.startswith("GD3")]


def whole_step(report: Report) -> CaptureOutcome:
    (outcome,) = [capture for capture in report.captures if capture.scope == "whole step"]
    return outcome


def line_of(name: str, text: str) -> int:
    lines = (SAMPLES / f"{name}.py").read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, start=1) if text in line]
    return number


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_expect_line_is_understood(file: Path) -> None:
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    assert len(expectations_of(file)) == docstring.count("\nExpect") > 0


def test_the_table_of_samples_says_the_same() -> None:
    table: dict[tuple[str, str], tuple[str, ...]] = {}
    file = ""
    for row in (SAMPLES / "README.md").read_text().splitlines():
        cells = [cell.strip(" `") for cell in row.split("|")[1:-1]]
        if len(cells) == 5 and cells[3] in ("safe", "partly safe", "unsafe"):
            file = cells[0] or file
            table[file, cells[1]] = (cells[3].replace(" ", "-"), cells[4].replace(" ", ""))
    assert table == {
        (e.file.name, e.variant): (e.verdict, ",".join(sorted(e.rules))) for e in EXPECTATIONS
    }


@every_sample
def test_verdict_and_mode_are_the_documented_ones(expected: Expectation) -> None:
    report = report_of(expected.spec)
    assert (report.verdict, report.target.mode) == (expected.verdict, expected.mode), report.reason


@every_sample
def test_documented_rules_are_found_in_the_sample_itself(expected: Expectation) -> None:
    found = {
        finding.rule
        for finding in report_of(expected.spec).findings
        if finding.location is not None and Path(finding.location.file) == expected.file
    }
    assert {rule for rule in expected.rules if not rule.startswith("GD3")} <= found


@every_sample
def test_no_other_hazard_is_reported(expected: Expectation) -> None:
    unexpected = [
        (finding.rule, finding.location, finding.message)
        for finding in hazards(report_of(expected.spec))
        if finding.rule not in expected.rules
    ]
    assert unexpected == []


@every_sample
def test_a_safe_sample_is_captured_and_verified_bitwise(expected: Expectation) -> None:
    outcome = whole_step(report_of(expected.spec))
    verification = outcome.verification
    if expected.verdict == "safe":
        assert outcome.status == "captured"
        assert verification is not None
        assert (verification.status, verification.method) == ("verified", "bitwise")
        assert verification.replays >= 3
    else:
        assert verification is None or verification.status != "verified"


def test_gelu_pays_on_one_image_and_not_on_a_batch() -> None:
    assert "GD301" not in {finding.rule for finding in sample_report("gelu").findings}
    assert "GD301" in {finding.rule for finding in sample_report("gelu", "large_batch").findings}


@pytest.mark.parametrize(
    ("name", "rule", "tensor"),
    [
        ("lr_schedule", "GD204", re.compile(r"model\..*(weight|bias)$")),
        ("scheduled_scale", "GD203", re.compile(r"output|grad|model\..*(weight|bias)$")),
    ],
)
def test_a_frozen_number_is_shown_with_the_difference_it_makes(
    name: str, rule: str, tensor: re.Pattern[str]
) -> None:
    report = sample_report(name)
    outcome = whole_step(report)
    assert outcome.status == "captured"
    assert outcome.verification is not None
    assert outcome.verification.status == "wrong"
    first = outcome.verification.differences[0]
    assert first.max_abs > 0
    assert tensor.search(first.tensor)
    (finding,) = [finding for finding in report.findings if finding.rule == rule]
    assert finding.effect == "replay-is-wrong"


def test_plain_adam_is_refused_and_capturable_adam_is_verified() -> None:
    plain = sample_report("adam_training")
    (finding,) = hazards(plain)
    assert (finding.rule, finding.effect) == ("GD111", "capture-fails")
    assert finding.location is not None
    assert finding.location.line == line_of("adam_training", "optimizer.step()")
    assert whole_step(plain).status == "refused"

    capturable = whole_step(sample_report("adam_training", "capturable"))
    assert capturable.verification is not None
    assert capturable.verification.status == "verified"


def test_dynamic_branch_names_the_read_and_the_three_safe_modules() -> None:
    report = sample_report("dynamic_branch")
    (read,) = [finding for finding in report.findings if finding.rule == "GD107"]
    assert read.location is not None
    assert read.location.line == line_of("dynamic_branch", "tmp.sum().item()")
    assert read.effect == "capture-fails"
    names = {module.rpartition(".")[2] for module in report.safe_modules}
    assert {"module1", "module2", "module3"} <= names


def test_detector_keeps_its_backbone() -> None:
    report = sample_report("detector")
    assert "backbone" in {module.rpartition(".")[2] for module in report.safe_modules}
