"""Every rule is proved by its own examples: found on its line, and true on the machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import graphdoctor.rules
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.host_calls import captures_rng_state
from graphdoctor.graphs.whole_step import CapturedStep, capture_whole_step
from graphdoctor.record.place import place
from graphdoctor.rules import ALL_RULES
from graphdoctor.rules.fragmented import fragmented
from graphdoctor.rules.mutated_input import MutatedInput
from graphdoctor.rules.not_launch_bound import not_launch_bound
from graphdoctor.rules.repeated_seed import RepeatedSeed
from graphdoctor.rules.rule import MEASURED, RecordingRule, Rule
from graphdoctor.target import Inputs, from_object
from graphdoctor.values.captures import Region
from graphdoctor.values.figures import Range
from graphdoctor.values.speed import Estimate
from tests.support.diagnosing import found, judged, marked

FOLDER = Path(graphdoctor.rules.__file__).parent
NUMBERS = {"capture-fails": "1", "replay-is-wrong": "2", "replay-is-slow": "3"}
RECORDED = tuple(rule for rule in ALL_RULES if issubclass(rule, RecordingRule))

every_rule = pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.id)
every_recorded_rule = pytest.mark.parametrize("rule", RECORDED, ids=lambda rule: rule.id)
capture_fails = pytest.mark.parametrize(
    "rule", [r for r in RECORDED if r.effect == "capture-fails"], ids=lambda rule: rule.id
)
# Where torch refuses to seed in a capture, GD110 reports this rule's bad example.
REFUSED = [] if captures_rng_state() else [RepeatedSeed.id]


def by_its_bad_example(rule: type[Rule]):
    refused = pytest.mark.xfail(reason="this torch refuses to seed in a capture", strict=True)
    return pytest.param(rule, id=rule.id, marks=[refused] if rule.id in REFUSED else [])


every_bad_example = pytest.mark.parametrize("rule", map(by_its_bad_example, RECORDED))
replay_is_wrong = pytest.mark.parametrize(
    "rule", [by_its_bad_example(r) for r in RECORDED if r.effect == "replay-is-wrong"]
)


H200 = Path(__file__).parents[2] / "benchmarks" / "data" / "rules_h200_torch2.11.jsonl"


def measured_examples() -> dict[tuple[str, str], dict[str, object]]:
    """What the H200 did with each rule's examples: by rule, then "bad" or "good"."""
    rows = [json.loads(line) for line in H200.read_text().splitlines()]
    names = ((row["case"].split(":"), row) for row in rows if "case" in row)
    return {(rule, which): row for (_, rule, which), row in names}


MEASURED_EXAMPLES = measured_examples()


@cache
def judged_example(rule: type[Rule], example: str):
    return judged(getattr(rule, example))


def test_the_list_holds_every_file_of_the_folder_in_the_order_of_ids() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "rule"}
    assert {rule.__module__.rpartition(".")[2] for rule in ALL_RULES} == files
    ids = [rule.id for rule in ALL_RULES]
    assert ids == sorted(set(ids))


@every_rule
def test_a_rule_is_named_and_numbered_after_its_pattern_and_effect(rule: type[Rule]) -> None:
    assert re.fullmatch(rf"GD{NUMBERS[rule.effect]}\d\d", rule.id)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    assert rule.__module__.rpartition(".")[2] == rule.name.replace("-", "_")


@every_rule
def test_a_rule_explains_what_happens_when_it_is_wrong_and_what_to_write(rule: type[Rule]) -> None:
    assert rule.title().endswith(".")
    assert len(rule.title()) <= 80
    assert len(rule.explanation().split("\n\n")) >= 3
    assert rule.fix.endswith(".")


@every_bad_example
def test_the_bad_example_is_found_by_exactly_its_rule_on_its_line(rule: type[Rule]) -> None:
    marks = marked(rule.bad)
    assert {name for name, _ in marks} == {rule.id}
    assert found(judged_example(rule, "bad")[0]) == marks


@every_recorded_rule
def test_the_good_example_has_no_mark_and_satisfies_every_rule(rule: type[Rule]) -> None:
    assert not marked(rule.good)
    assert found(judged_example(rule, "good")[0]) == set()


@capture_fails
def test_the_machine_refuses_to_capture_the_bad_example(rule: type[Rule]) -> None:
    assert judged_example(rule, "bad")[1].status == "refused"


@replay_is_wrong
def test_the_machine_does_not_replay_the_bad_example_as_eager_runs_it(rule: type[Rule]) -> None:
    _, outcome = judged_example(rule, "bad")
    assert outcome.status == "captured"
    assert outcome.verification is not None
    if (
        rule.id == "GD210"
    ):  # the twins' own inputs are written alike; the next test has the caller's
        assert outcome.verification.status == "verified"
    elif rule.id == "GD217":  # a later step differs than the twins run
        assert outcome.verification.status == "verified"
    elif rule.id == "GD212":  # another shape does not even fit into the graph's inputs
        assert outcome.verification.status == "not-verified"
        assert "shape" in outcome.verification.reason
    else:
        assert outcome.verification.status == "wrong", outcome.verification.reason


def test_a_replay_leaves_the_callers_input_as_it_was_where_eager_writes_it() -> None:
    with EmulatedDevice() as device:
        target = place(from_object(MutatedInput.bad), device)
        captured = capture_whole_step(target)
        assert isinstance(captured, CapturedStep)
        (mine,) = target.fresh_inputs().args
        before = mine.clone()
        captured.load(Inputs((mine,)))
        captured.replay()
        assert mine.equal(before)
        target.step(mine)
        assert not mine.equal(before)


@every_recorded_rule
def test_the_machine_captures_and_replays_the_good_example_right(rule: type[Rule]) -> None:
    _, outcome = judged_example(rule, "good")
    assert outcome.status == "captured", outcome.reason
    assert outcome.verification is not None
    assert outcome.verification.status == "verified", outcome.verification.reason


@every_rule
def test_a_rule_says_that_it_was_measured_where_a_gpu_did_what_it_says(rule: type[Rule]) -> None:
    bad, good = (MEASURED_EXAMPLES.get((rule.id, which)) for which in ("bad", "good"))
    agrees = bool(good and good["captures"] and good["replay"] == "verified")
    if bad is None:
        agrees = False  # no GPU has seen this rule's examples yet
    elif rule.effect == "capture-fails":
        agrees = agrees and not bad["captures"]
    elif rule.effect == "replay-is-wrong":
        # What is special about the last two is said above, where they are replayed here.
        agrees = agrees and (bad["replay"] == "wrong" or rule.id in ("GD210", "GD212"))
    else:
        agrees = False  # an estimate or a partition decides it: the examples' replay shows nothing
    assert rule.evidence.startswith(MEASURED) == agrees
    assert agrees or rule.evidence.startswith(("source", "documentation"))


def test_rules_are_listed_without_importing_torch() -> None:
    script = (
        "import sys; from graphdoctor.rules import ALL_RULES\n"
        "assert all(rule.title() for rule in ALL_RULES)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def exactly(value: float) -> Range:
    return Range(low=value, mid=value, high=value)


def estimate(speedup: float) -> Estimate:
    return Estimate(
        gpu="H100",
        basis="predicted",
        launches=10,
        host_us=exactly(100),
        device_busy_us=exactly(950),
        eager_us=exactly(1000),
        graph_us=exactly(1000 / speedup),
        launch_bound_share=exactly(1 - 1 / speedup),
        speedup=exactly(speedup),
    )


def test_a_step_that_a_graph_does_not_speed_up_is_not_launch_bound() -> None:
    finding = not_launch_bound(estimate(1.02))
    assert finding is not None
    assert (finding.rule, finding.effect) == ("GD301", "replay-is-slow")
    assert "950 us of the 1,000 us" in finding.message
    assert "predicted for H100" in finding.message
    assert not_launch_bound(estimate(1.3)) is None


def region(name: str, *, worthwhile: bool) -> Region:
    return Region(
        name=name,
        operators=3,
        launches=2,
        phases=("forward",),
        modules=(),
        first=None,
        last=None,
        blocked_by=("GD101",),
        iterations=(0,),
        worthwhile=worthwhile,
        reason="",
    )


def test_a_step_of_many_small_parts_is_fragmented() -> None:
    small = [region(name, worthwhile=False) for name in "ABC"]
    finding = fragmented(small)
    assert finding is not None
    assert "3 regions" in finding.message
    assert "GD101" in finding.message
    large = [region(name, worthwhile=True) for name in "DEFG"]
    assert fragmented([*small, *large]) is None
    assert fragmented(small[:1]) is None
