"""A program's report says of each step how much of the program it was, and why one was not diagnosed."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from graphdoctor.pipeline.of_program import NO_STEPS, program_report
from graphdoctor.target.program.launch import Ended, Program
from graphdoctor.target.program.step import SeenStep
from graphdoctor.values.locations import Location
from graphdoctor.values.program import (
    ON_CPU,
    CalledModule,
    Ending,
    HostWait,
    ProgramReport,
    modules_to_move,
)

PLACE = Location("train.py", 7)


def report_of(
    *steps: SeenStep,
    wall_s: float = 10.0,
    reasons: tuple[str, ...] = (),
    by_hand: tuple[tuple[Location, int, str], ...] = (),
    only: str = "",
    ending: Ending = "finished",
) -> ProgramReport:
    watch = SimpleNamespace(
        steps=steps, reasons=reasons, lone_backwards=by_hand, diagnosis_s=0.0, loading_s=0.0, only=only,
        after=3, short_batches={},
    )  # fmt: skip
    return program_report(
        Program("train.py", ("--quick",)), Ended(ending, 0), watch, wall_s=wall_s, machine=None
    )  # fmt: skip


def step(**changes: object) -> SeenStep:
    return SeenStep("train", PLACE, 9, "training", **changes)


@pytest.mark.parametrize(
    ("wall_s", "share"),
    [(10.0, 0.4), (4.0, 1.0), (3.9, 1.0), (0.0, 0.0)],
    ids=["a part", "all", "more than all, by clocks that differ", "no time at all"],
)
def test_a_step_s_share_is_of_the_program_s_time(wall_s: float, share: float) -> None:
    (seen,) = report_of(step(begun=9, wall_s=4.0), wall_s=wall_s).steps
    assert (seen.begun, seen.wall_s, seen.share) == (9, 4.0, share)


def test_a_step_without_a_diagnosis_says_why() -> None:
    once, rare, refused, failed = report_of(
        step(begun=1),
        step(begun=2, modules={1: CalledModule("Linear")}),
        step(begun=9, reason="Its loop changed."),
        step(begun=9, outcome="It raised."),
    ).steps
    assert once.reason == (
        "The step ran 1 time, and a diagnosis needs 5 runs. Run more steps, or pass `--after 0`, which needs 2."
    )
    assert rare.reason == (
        "The step ran 2 times, and a diagnosis needs 5 runs. The step runs on the CPU, where a CUDA graph does"
        " nothing. Run more steps, or pass `--after 0`, which needs 2."
    )
    assert (refused.reason, failed.reason) == ("Its loop changed.", "It raised.")
    (cut,) = report_of(step(begun=9), ending="interrupted").steps
    assert (
        cut.reason == "It was seen 9 times, and the program was interrupted before its diagnosis."
    )


def test_a_step_on_the_cpu_names_the_lines_after_which_its_modules_can_be_moved() -> None:
    def module(expression: str, line: int) -> CalledModule:
        return CalledModule("Linear", expression, "/repo/gan.py", line)

    modules = {1: module("netG", 20), 2: module("netD", 24), 3: CalledModule("Linear")}
    report = report_of(step(begun=9, outcome=ON_CPU, modules=modules))
    (seen,) = report.steps
    assert seen.reason == ON_CPU and seen.is_reached
    moved = [(one.file, one.line, one.code) for one in report.on_gpu]
    assert moved == [
        ("/repo/gan.py", 20, 'netG.to("cuda")'),
        ("/repo/gan.py", 24, 'netD.to("cuda")'),
    ]
    (few,) = report_of(step(begun=2, modules=modules)).steps
    assert "runs" in few.reason and ON_CPU in few.reason


def test_steps_on_the_cpu_have_one_reason_which_moves_the_models_that_are_trained() -> None:
    """An agent that acts calls the layers of its model by themselves: these move with the model."""
    layer = CalledModule("Linear", "self.fc1", "/repo/dqn.py", 45)
    model = CalledModule("Qnet", "q", "/repo/dqn.py", 79)
    acting = SeenStep("act", PLACE, 9, "inference", outcome=ON_CPU, modules={1: layer})
    trained = step(begun=9, outcome=ON_CPU, modules={2: model})
    steps = report_of(acting, trained).steps
    assert [one.reason for one in steps] == [ON_CPU, ON_CPU]
    moved = modules_to_move((one.mode, one.modules) for one in steps)
    assert moved == [model]
    moved = modules_to_move((one.mode, one.modules) for one in steps[:1])
    assert moved == [layer]


def test_waits_between_steps_are_told_for_each_gap_and_those_on_the_step_s_own_lines_are_not() -> (
    None
):
    after = Location("train.py", 10)
    waits = Counter(
        {(after, "loss.item()"): 6, (None, "torch.cuda.synchronize()"): 3, (PLACE, "x.cpu()"): 3}
    )
    (seen,) = report_of(step(begun=4, waits=waits, gaps=3)).steps
    assert seen.between == (
        HostWait(after, "loss.item()", 2.0),
        HostWait(None, "torch.cuda.synchronize()", 1.0),
    )


def test_weights_that_are_updated_by_hand_are_named_instead_of_what_a_step_is() -> None:
    (note,) = report_of(by_hand=((PLACE, 342, ""),)).notes
    assert note.startswith("The backward pass of train.py:7 ran 342 times, and no optimizer")
    assert "with graphdoctor.step():" in note


def test_a_program_without_steps_is_told_what_a_step_is_unless_something_else_was_wrong() -> None:
    assert report_of().notes == (NO_STEPS,)
    assert report_of(reasons=("It forked.",)).notes == ("It forked.",)
    (note,) = report_of(only="Net.update").notes
    assert note == "No function or method Net.update of the program was called (--step)."
    assert report_of(step(begun=9)).notes == ()
    assert report_of().command == ("train.py", "--quick")
