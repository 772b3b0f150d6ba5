"""Unmodified programs of eight kinds are diagnosed where they stand, and print what they print alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.programs import NEVER, SAMPLES, run

# What each gives: the verdict and the rules of each step. GD301 and GD302 depend on the GPU.
EXPECTED = {
    "plain_loop.py": [
        ("plain_loop.py:26-29", "training", "partly-safe", ("GD111", "GD117")),
        ("Sequential at plain_loop.py:38", "inference", "safe", ()),
    ],
    "gpt_training.py": [
        (
            "gpt_training.py:109-120",
            "training",
            "partly-safe",
            ("GD111", "GD117", "GD205", "GD209"),
        ),
    ],
    "dqn.py": [
        ("dqn.py:63-69", "training", "partly-safe", ("GD101", "GD111", "GD117")),
        ("QNetwork at dqn.py:51", "inference", "safe", ()),
        ("QNetwork at dqn.py:61", "inference", "safe", ()),
    ],
    "image_training.py": [
        ("image_training.py:41-53", "training", "partly-safe", ("GD117",)),
        ("ConvNet at image_training.py:66", "inference", "safe", ()),
    ],
    "serving.py": [("Sequential at serving.py:24", "inference", "safe", ())],
}
_PAYING = {"GD301", "GD302"}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_program_gets_its_steps_diagnosed_and_prints_what_it_prints_alone(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    text = (SAMPLES / name).read_text()
    file.write_text(text.replace("layers=2", "layers=1"))  # a second block runs the same code again
    after = 6 if name == "dqn.py" else 3  # it logs in every fifth step
    ran, alone = run(file, after=after), run(file, after=NEVER)
    assert (ran.report.ending, ran.report.exit_code, ran.said) == ("finished", 0, "")
    seen = {
        (step, mode, verdict, tuple(rule for rule in rules if rule not in _PAYING))
        for step, mode, verdict, rules in ran.summary
        if "a diagnosis needs" not in verdict
    }
    assert seen == set(EXPECTED[name])
    assert _without_times(ran.printed) == _without_times(alone.printed) != ""
    if name == "image_training.py":  # what it still holds of the step before is named
        training = ran.report.steps[0].report
        assert training is not None
        (found,) = (one for one in training.findings if one.rule == "GD117")
        assert (
            "`output` (image_training.py:42) and `loss` (image_training.py:43) still reference an AccumulateGrad node"
            in found.message
        )
        assert found.fix == "Add `output = loss = None` before line 41."


@pytest.mark.gpu
def test_a_gpu_refuses_the_capture_of_a_step_whose_program_holds_the_one_before() -> None:
    training = run(SAMPLES / "image_training.py", device="cuda").report.steps[0]
    assert training.report is not None
    whole = next(one for one in training.report.captures if one.scope == "whole step")
    assert whole.status == "refused" and "default stream" in whole.reason
    assert "GD117" in {one.rule for one in training.report.findings}
    assert training.report.verdict in ("partly-safe", "unsafe")


def _without_times(text: str) -> str:
    return re.sub(r"\(\d+ images/s\)", "", text)
