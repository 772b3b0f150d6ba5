"""Programs of Hugging Face's and Lightning's making are diagnosed in the libraries' loops."""

from __future__ import annotations

import pytest

from tests.support.programs import NEVER, SAMPLES, run


def test_the_step_of_a_hugging_face_trainer_is_found_in_its_loop() -> None:
    pytest.importorskip("accelerate", reason="Trainer needs accelerate, which is not installed")
    ran, alone = run(SAMPLES / "hf_trainer.py"), run(SAMPLES / "hf_trainer.py", after=NEVER)
    assert ran.report.exit_code == 0
    (step,) = ran.report.steps
    assert step.location.file.endswith("transformers/trainer.py") and step.mode == "training"
    assert step.report is not None and step.report.verdict == "partly-safe"
    assert {"GD101", "GD111"} <= {finding.rule for finding in step.report.findings}
    assert ran.printed.splitlines()[-1] == alone.printed.splitlines()[-1]


@pytest.mark.parametrize(
    ("cache", "verdict", "rules"),
    [("dynamic", "partly-safe", {"GD212"}), ("static", "safe", set())],
)
def test_the_decode_step_of_generate_is_found_with_its_cache(
    cache: str, verdict: str, rules: set[str]
) -> None:
    arguments = ("--cache", cache)
    ran = run(SAMPLES / "generate.py", *arguments)
    alone = run(SAMPLES / "generate.py", *arguments, after=NEVER)
    (step,) = ran.report.steps
    assert (step.mode, step.begun) == ("inference", 15)
    assert step.report is not None and step.report.verdict == verdict
    assert {finding.rule for finding in step.report.findings} == rules
    assert ran.printed == alone.printed


def test_the_step_of_a_lightning_module_is_found() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    ran, alone = (
        run(SAMPLES / "lightning_module.py"),
        run(SAMPLES / "lightning_module.py", after=NEVER),
    )
    assert ran.report.exit_code == 0 and ran.printed == alone.printed
    (step,) = ran.report.steps
    assert step.mode == "training" and step.report is not None
    rules = {found.rule for found in step.report.findings if found.effect != "replay-is-slow"}
    assert rules == {"GD111"}
