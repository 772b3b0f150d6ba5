"""What the stages found -> the verdict: safe only with proof, and the reason in one sentence."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphdoctor.diagnose.verdict import judge
from graphdoctor.record.operators import ON_BOTH_DEVICES
from graphdoctor.values.captures import CaptureOutcome, Region, Verification
from graphdoctor.values.finding import Finding
from tests.support.checking import finding
from tests.support.reports import PARTLY_SAFE

VERIFIED = Verification("verified", replays=3, tensors=2, method="bitwise")
WRONG = replace(VERIFIED, status="wrong", reason="output differs")
UNVERIFIED = replace(VERIFIED, status="not-verified", reason="no memory")
REGION = replace(PARTLY_SAFE.regions[0], name="A", worthwhile=True)
SLOW = finding(rule="GD301")
FAILS = finding(rule="GD101")
SPOILS = replace(finding(rule="GD203"), effect="replay-is-wrong")


def outcome(
    verification: Verification | None = VERIFIED,
    *,
    scope: str = "whole step",
    status: str = "captured",
    reason: str = "",
) -> CaptureOutcome:
    return replace(
        CaptureOutcome(scope, "captured"), status=status, reason=reason, verification=verification
    )


def test_a_verified_replay_without_findings_is_safe() -> None:
    verdict, reason = judge((), (), (outcome(),), ())
    assert verdict == "safe"
    assert reason.startswith("The whole step can be captured. 3 replays on fresh inputs")


def test_what_only_slows_a_replay_leaves_a_step_safe() -> None:
    assert judge((SLOW,), (), (outcome(),), ())[0] == "safe"


@pytest.mark.parametrize("found", [FAILS, SPOILS])
def test_no_verified_replay_makes_a_step_with_a_hazard_safe(found: Finding) -> None:
    assert judge((SLOW, found), (), (outcome(),), ())[0] == "unsafe"


def test_a_step_that_no_gpu_runs_gets_no_other_verdict() -> None:
    """A tensor was left on the CPU: whatever else stands in the way of a graph comes after that."""
    doubts = ("no memory", f"aten.mul.Tensor {ON_BOTH_DEVICES} (net.py:3)")
    for findings in ((), (FAILS,)):
        verdict, reason = judge(findings, (REGION,), (outcome(),), doubts)
        assert verdict == "unknown"
        assert reason.startswith("A GPU cannot run this step: aten.mul.Tensor receives GPU and CPU")


def test_a_part_that_was_captured_and_could_not_be_compared_leaves_the_verdict_open() -> None:
    """The whole step is refused, but nobody knows that no part worth capturing remains."""
    refused = outcome(None, status="refused", reason="a wait")
    captures = (refused, outcome(UNVERIFIED, scope="region A"))
    verdict, reason = judge((FAILS,), (REGION,), captures, ())
    assert verdict == "unknown"
    assert reason == (
        "1 finding blocks whole-step capture. The rest of the step is not verified: no memory."
    )
    assert judge((FAILS,), (replace(REGION, worthwhile=False),), captures, ())[0] == "unsafe"


@pytest.mark.parametrize(
    ("regions", "is_cut_short", "verdict"),
    [
        ((), False, "unsafe"),
        ((replace(REGION, worthwhile=False),), False, "unsafe"),
        ((REGION,), False, "unknown"),
        ((), True, "unknown"),
    ],
)
def test_without_values_nothing_is_said_of_what_a_hazard_leaves(
    regions: tuple[Region, ...], is_cut_short: bool, verdict: str
) -> None:
    judged = judge(
        (FAILS,), regions, (outcome(None),), (), has_values=False, is_cut_short=is_cut_short
    )
    assert judged[0] == verdict


@pytest.mark.parametrize(
    ("captures", "verdict", "words"),
    [
        ((), "unsafe", "failed: no capture was tried"),
        ((outcome(scope="region A"),), "unsafe", "failed: no capture was tried"),
        ((outcome(None, status="refused", reason="a sync"),), "unsafe", "failed: a sync"),
        ((outcome(WRONG),), "unsafe", "a replay differs from eager: output differs"),
        ((outcome(UNVERIFIED),), "unknown", "could not be verified: no memory"),
        ((outcome(None),), "unknown", "could not be verified: no replay was compared with eager"),
    ],
)
def test_nothing_is_safe_without_proof(
    captures: tuple[CaptureOutcome, ...], verdict: str, words: str
) -> None:
    found = judge((), (), captures, ())
    assert found[0] == verdict
    assert words in found[1]


def test_a_doubt_about_the_emulation_leaves_it_unknown() -> None:
    verdict, reason = judge((), (), (outcome(),), ("aten.odd ran on the CPU", "more"))
    assert verdict == "unknown"
    assert reason.endswith("not verified: aten.odd ran on the CPU")
    assert judge((), (), (outcome(WRONG),), ("a doubt",))[0] == "unsafe"


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        ((FAILS,), "1 finding blocks whole-step capture."),
        ((FAILS, FAILS), "1 finding blocks whole-step capture."),  # one fix is for both
        ((FAILS, replace(FAILS, fix="more")), "2 findings block whole-step capture."),
        ((SPOILS,), "1 finding makes replays wrong."),
        (
            (FAILS, SPOILS, replace(SPOILS, fix="more"), SLOW),
            "1 finding blocks whole-step capture and 2 findings make replays wrong.",
        ),
    ],
)
def test_hazards_are_counted_by_what_they_do(findings: tuple[Finding, ...], words: str) -> None:
    verdict, reason = judge(findings, (), (outcome(),), ())
    assert verdict == "unsafe"
    assert reason.startswith(words)
    assert reason.endswith("No region is worth capturing.")


@pytest.mark.parametrize(
    ("region", "verification", "verdict"),
    [
        (REGION, VERIFIED, "partly-safe"),
        (REGION, WRONG, "unsafe"),
        (REGION, UNVERIFIED, "unknown"),
        (REGION, None, "unsafe"),
        (replace(REGION, worthwhile=False), VERIFIED, "unsafe"),
        (replace(REGION, name="B"), VERIFIED, "unsafe"),
    ],
)
def test_a_region_is_safe_where_it_pays_and_was_verified(
    region: Region, verification: Verification | None, verdict: str
) -> None:
    found = judge((FAILS,), (region,), (outcome(verification, scope="region A"),), ())
    assert found[0] == verdict
    assert ("1 of 1 region is worth capturing" in found[1]) == (verdict == "partly-safe")


def test_what_replays_prove_is_proved_of_the_inputs_that_they_had() -> None:
    fixed = replace(VERIFIED, inputs="on the given inputs only")
    verdict, reason = judge((), (), (outcome(fixed),), ())
    assert verdict == "safe"
    assert reason.endswith("3 replays matched eager, on the given inputs only.")
    _, reason = judge((FAILS,), (REGION,), (outcome(fixed, scope="region A"),), ())
    assert reason.endswith("is worth capturing, shown on the given inputs only.")


def test_a_known_other_path_is_not_safe() -> None:
    verdict, reason = judge((), (), (outcome(),), (), parting_inputs=("inputs[1]",))
    assert verdict == "unknown"
    assert "for the given values of `inputs[1]`." in reason
    assert judge((FAILS,), (), (outcome(),), (), parting_inputs=("x",))[0] == "unsafe"


def test_regions_are_counted() -> None:
    regions = (REGION, replace(REGION, name="B"))
    captures = tuple(outcome(scope=f"region {name}") for name in "AB")
    assert "2 of 2 regions are worth capturing" in judge((SPOILS,), regions, captures, ())[1]
