"""A program that trains by Hugging Face's Trainer gets a subclass of it, and trains as before."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from graphdoctor.strategies.patch.alike import likeness
from graphdoctor.strategies.patch.edits.capture_trainer import CaptureTrainer
from graphdoctor.strategies.patch.edits.edit import NoProposal
from graphdoctor.strategies.patch.rerun import MOST_STEPS, Task, reruns
from graphdoctor.strategies.patch.source import changed_sources
from graphdoctor.target.program.launch import Program
from graphdoctor.values.locations import Location
from graphdoctor.values.program import ProgramStep
from tests.support.programs import SAMPLES
from tests.support.reports import SAFE, step_of

HEAD = "from transformers import Seq2SeqTrainer, Trainer as HFTrainer\n\n"
OWN = """\
class Mine(HFTrainer):
    def log(self, logs):
        pass


"""
MAIN = """\
def main(model):
    trainer = {trainer}(
        model=model,  # a comment
    )
    trainer.train()
"""


def _step(file: Path, source: str) -> ProgramStep:
    file.write_text(source)
    return replace(
        step_of(SAFE),
        location=Location("/lib/site-packages/transformers/trainer.py", 1900, "_run_epoch"),
        caller=Location(str(file), source.count("\n"), "main"),
        mode="training",
    )


@pytest.mark.parametrize(
    ("source", "base"),
    [
        (HEAD + MAIN.format(trainer="HFTrainer"), "HFTrainer"),
        (HEAD + OWN + MAIN.format(trainer="Mine"), "Mine"),
        ("import transformers\n\n" + MAIN.format(trainer="transformers.Trainer"), "transformers.Trainer"),
    ],
)  # fmt: skip
def test_the_trainer_is_made_from_a_subclass_of_its_class(
    source: str, base: str, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    changes = CaptureTrainer().propose(_step(file, source)).changes
    changed = changed_sources(changes)[str(file)][1]
    compile(changed, "program.py", "exec")
    assert f"\n\n\nclass CapturedTrainer({base}):\n" in changed
    assert "\n\n\n@graphdoctor.capture\ndef forward_backward(" in changed
    kept = MAIN.format(trainer="CapturedTrainer")
    assert changed.endswith(f"\n\n\n{kept}") and "\n\n\n\n" not in changed


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (HEAD + OWN.replace("log", "compute_loss"), "`Mine` defines compute_loss"),
        (HEAD + 2 * MAIN.format(trainer="Seq2SeqTrainer"), "makes 2 Trainers"),
        ("def main(trainer):\n    trainer.train()\n", "makes no Trainer"),
        (HEAD + MAIN.format(trainer="HFTrainer") + "CapturedTrainer = None\n", "are taken"),
    ],
)
def test_what_the_subclass_would_change_is_refused(
    source: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(NoProposal, match=reason):
        CaptureTrainer().propose(_step(tmp_path / "program.py", source))


def test_accumulated_gradients_and_the_learning_rate_follow_the_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="Trainer needs accelerate, which is not installed")
    options = 'num_train_epochs=3, gradient_accumulation_steps=3, lr_scheduler_type="cosine",'
    source = (SAMPLES / "hf_trainer.py").read_text().replace("num_train_epochs=1,", options)
    file = tmp_path / "program.py"
    changed = changed_sources(CaptureTrainer().propose(_step(file, source)).changes)
    task = Task(Program(str(file)), str(tmp_path), "emulated", "h100", MOST_STEPS)
    with reruns(120.0) as run:
        eager = run(task)
        captured = run(dataclasses.replace(task, sources={str(file): changed[str(file)][1]}))
    found = likeness(eager, captured)
    assert found.is_same and "after 18 steps are bitwise equal" in found.sentence, found
    # 48 passes in three epochs; the first of each make of gradients, and three in all, run eagerly.
    assert captured.replays >= 40, captured.fallbacks
