"""The page of a program: its exact text, a row for each step, equal steps once, and the change as a frame."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from graphdoctor.cli import make_parser
from graphdoctor.cli.arguments import program_of
from graphdoctor.reporters import program_page
from graphdoctor.reporters.analysis.summary import now_of
from graphdoctor.reporters.look import Look
from graphdoctor.values.figures import Range, ratio_text
from graphdoctor.values.locations import Lines
from graphdoctor.values.program import ON_CPU, Handled, HostWait, LineOnGpu, Patch, ProgramStep
from graphdoctor.values.report import RankOutcome
from tests.support.reports import (
    BASE,
    COMPARED,
    ESTIMATE,
    GOLDEN,
    HOST_READ,
    PROGRAM,
    SAFE,
    at,
    of_program,
    step_of,
)

READ_LATER = Handled.of(HOST_READ, "capture")


def test_page_is_the_golden_one() -> None:
    """After a wanted change: python -m tests.support.reports, and look at the difference."""
    page = program_page.render(PROGRAM, Look(base=BASE), diff_file="fix.diff")
    assert page == (GOLDEN / "program.txt").read_text(encoding="utf-8")
    assert max(map(cell_len, page.splitlines())) <= 80


def test_steps_with_equal_findings_share_their_frames() -> None:
    page = program_page.render(PROGRAM, Look(base=BASE))
    assert page.count("error[GD101]: steps 1 and 2: ") == 1
    assert page.count("error[GD101]") == 1
    assert "warning: step 4: No hazard was found" in page


def test_ranks_are_named_once_for_steps_that_agree_on_them() -> None:
    """A step of one process has no ranks, and nothing is said of them."""
    safe = RankOutcome(0, "safe", "")
    agreed = replace(SAFE, ranks=(safe, replace(safe, rank=1)))
    split = replace(SAFE, ranks=(safe, RankOutcome(1, "unsafe", ""), RankOutcome(2, "safe", "")))
    page = program_page.render(
        of_program(step_of(agreed), step_of(agreed), step_of(split), step_of(SAFE)), Look(base=BASE)
    )
    assert "\nnote: steps 1 and 2: the same verdict on all 2 ranks\n" in page
    assert "\nnote: step 3: UNSAFE on rank 1, SAFE on ranks 0 and 2\n" in page
    assert page.count("note: ") == 2


def test_a_safe_step_is_one_row() -> None:
    page = program_page.render(of_program(step_of(SAFE)), Look(base=BASE))
    assert "1 step: 1 SAFE. The program ran to its end (exit code 0).\n" in page
    assert "\n     SAFE: the whole step can run as one CUDA graph; now: speedup by" in page
    assert page.count("SAFE") == 3
    assert page.endswith("\nUse --all for each step's page.\n")


def test_a_step_without_a_report_says_if_it_cannot_be_diagnosed_or_was_not_reached() -> None:
    cannot = replace(step_of(None), reason="The step runs on the CPU.")
    late = replace(cannot, reason="The budget was used.", is_reached=False)
    page = program_page.render(of_program(cannot, late), Look(base=BASE))
    assert "2 steps: 1 NOT DIAGNOSED, 1 NOT REACHED." in page
    words = " ".join(page.split())
    assert "NOT REACHED: too little time or too few steps for a diagnosis" in words
    assert "speedup now:" not in words


DIFF = PROGRAM.patch.diff if PROGRAM.patch else ""
TRY = "     graphdoctor run --diff fix.diff train.py -- --epochs 1\n"
AGAIN = "     graphdoctor run train.py -- --epochs 1\n"


def orders(
    *steps: ProgramStep,
    patch: Patch | None,
    is_on_cpu: bool = False,
    on_gpu: tuple[LineOnGpu, ...] = (),
) -> str:
    """What the page says to do next."""
    report = replace(of_program(*steps), patch=patch, is_on_cpu=is_on_cpu, on_gpu=on_gpu)
    page = program_page.render(report, Look(base=BASE), diff_file="fix.diff")
    _, heading, following = page.partition("\nNext\n")
    return following if heading else ""


def test_the_speedup_of_the_program_follows_from_the_shares_of_its_steps() -> None:
    """A step of 50% that gets 4 times as fast saves 37.5% of the time."""
    estimate = replace(COMPARED.estimate, whole_speedup=Range.exact(4.0))
    step = replace(step_of(replace(COMPARED, estimate=estimate)), share=0.5)
    page = program_page.render(of_program(step), Look(base=BASE))
    (row,) = [line for line in page.splitlines() if "whole program" in line]
    now = now_of(step.report).speedup
    assert row.split()[2:] == [ratio_text(1 / (0.5 + 0.5 / now)), "1.6x"]
    on_cpu = replace(of_program(step), is_on_cpu=True)
    assert "whole program" not in program_page.render(on_cpu, Look(base=BASE))


def test_a_change_that_was_not_tried_says_how_to_try_and_apply_it() -> None:
    patch = Patch("not tried", DIFF, BASE)
    step = replace(step_of(SAFE), change="replay `model` as a CUDA graph")
    page = program_page.render(replace(of_program(step), patch=patch), Look(base=BASE))
    assert "change (step 1): replay `model` as a CUDA graph\n  --> train.py:16\n" in page
    following = orders(step, patch=patch)
    assert following.startswith("  1. Try the change.")
    assert TRY in following and following.endswith(
        "  2. Apply the change:\n     patch -p1 < fix.diff\n"
    )


def test_a_program_on_the_cpu_is_moved_before_its_change_is_tried() -> None:
    patch = Patch("not tried", DIFF, BASE)
    step = replace(step_of(SAFE), change="replay `model` as a CUDA graph")
    following = orders(step, patch=patch, is_on_cpu=True)
    assert following.startswith("  1. Move the program to the GPU: the model and its inputs:\n")
    lines = (
        LineOnGpu("train.py", 9, 'x = torch.rand(3, device="cuda")'),
        LineOnGpu("train.py", 12, 'model.to("cuda")', is_added=True),
    )
    following = orders(step, patch=patch, is_on_cpu=True, on_gpu=lines)
    first, second = following.split("  2. Try the change.")[0].split(":\n")
    words = "Move the program to the GPU: change these lines in train.py (`12+` is a new line after line 12)"
    assert " ".join(first.split()) == f"1. {words}"
    assert second == '     9: x = torch.rand(3, device="cuda")\n     12+: model.to("cuda")\n'


def test_a_program_on_the_cpu_says_what_to_type_first() -> None:
    step = replace(step_of(SAFE), report=None, reason=ON_CPU)
    following = " ".join(orders(step, patch=None).split())
    predict, _, move = following.partition(" 2. ")
    assert predict.endswith("graphdoctor run --device cpu-as-is train.py -- --epochs 1")
    assert move.startswith("If that is worth it, move the program to the GPU: the model and its")
    assert move.endswith(" graphdoctor run train.py -- --epochs 1")


def test_a_change_that_holds_spares_the_reader_the_fixes_of_its_step() -> None:
    cured, other = replace(step_of(COMPARED), handled=(READ_LATER,)), step_of(COMPARED)
    page = program_page.render(of_program(cured, other), Look(base=BASE))
    handled, _, second = page.partition("error[GD101]: step 2: ")
    assert "handled: the change above handles 1 error: no further edit is needed\n" in handled
    assert "= GD101: `tmp.sum().item()` makes the host wait" in handled
    words = " ".join(handled.split())
    assert "(models/branch.py:31). The change reads the value after the captured part." in words
    assert "Keep the decision" not in handled and "Keep the decision" in second
    assert "2 errors to fix" not in page and "2 errors, 1 error handled by the change." in page


def test_an_argument_check_that_the_change_turns_off_is_not_a_value_that_is_read_later() -> None:
    check = replace(HOST_READ, message="A check is a host sync.", location=at(40))
    handled = (READ_LATER, Handled.of(check, "no argument checks"))
    step = replace(step_of(replace(COMPARED, findings=(HOST_READ, check))), handled=handled)
    words = " ".join(program_page.render(of_program(step), Look(base=BASE)).split())
    off = "The change turns off the validation of distributions' arguments, which reads it, for the"
    assert f"(models/branch.py:40). {off} whole program." in words
    assert "(models/branch.py:31). The change reads the value after the captured part." in words


def test_a_line_that_the_change_handles_or_captures_is_no_host_sync_between_steps() -> None:
    waits = tuple(HostWait(at(line), "reads a value", 1.0) for line in (31, 9, 12, 50))
    trained = replace(step_of(COMPARED), handled=(READ_LATER,))  # in line 31
    acting = replace(step_of(SAFE), between=waits, captured=(Lines(at(9).file, 10, 20),))
    for show_all, shown in ((False, "(models/branch.py:9, :50)"), (True, "models/branch.py:50 ")):
        look = Look(base=BASE, show_all=show_all)
        words = " ".join(program_page.render(of_program(trained, acting), look).split())
        _, heading, places = words.partition("2 host syncs between steps, outside every graph")
        assert heading and shown in places and "branch.py:12 reads" not in places
    unchanged = of_program(step_of(COMPARED), replace(acting, captured=()))
    page = program_page.render(unchanged, Look(base=BASE))
    assert "4 host syncs between steps" in page


def test_code_that_the_change_replaces_is_not_a_value_that_is_read_later() -> None:
    step = replace(step_of(COMPARED), handled=(Handled.of(HOST_READ, "replaced code"),))
    words = " ".join(program_page.render(of_program(step), Look(base=BASE)).split())
    assert "The change replaces the code there." in words
    assert "reads the value after the captured part" not in words


def test_one_of_two_findings_of_a_rule_is_left_to_the_reader() -> None:
    other = replace(HOST_READ, message="`other.item()` makes the host wait.", location=at(52))
    step = replace(step_of(replace(COMPARED, findings=(HOST_READ, other))), handled=(READ_LATER,))
    page = program_page.render(of_program(step), Look(base=BASE))
    assert "error[GD101]: step 1: `other.item()` makes the host wait" in page
    assert "1 error, 1 error handled by the change." in page


def test_errors_of_one_fix_are_one_block_with_the_lines_of_all_steps() -> None:
    moved = replace(HOST_READ, location=replace(at(40), line=40))
    other = replace(moved, message="`other.item()` makes the host wait.", location=at(52))
    steps = (
        step_of(replace(COMPARED, findings=(HOST_READ, moved))),
        step_of(replace(COMPARED, findings=(moved, other))),
    )
    page = program_page.render(of_program(*steps), Look(base=BASE))
    assert page.count("= fix:") == 1 and page.count("error[GD101]") == 1
    assert "error[GD101]: steps 1 and 2: " in page
    assert "   = also: 2 more lines: models/branch.py:40, :52\n" in page
    assert "1 error in 3 places." in page


def test_a_line_with_two_cures_in_two_steps_is_one_block_that_says_whose_each_is() -> None:
    other = replace(HOST_READ, fix="Do something else.")
    steps = (
        step_of(replace(COMPARED, findings=(HOST_READ,))),
        step_of(replace(COMPARED, findings=(other,))),
    )
    page = program_page.render(of_program(*steps), Look(base=BASE))
    assert page.count("error[GD101]: steps 1 and 2: ") == 1
    assert "= fix:  step 1: Keep the decision" in page
    assert "= fix:  step 2: Do something else." in page


def test_an_error_in_the_captured_step_is_fixed_before_the_change_is_tried() -> None:
    """Its capture would be refused, and the change left out; the diff is made from the lines after the fix."""
    changed = replace(step_of(COMPARED), change="replay the step")
    following = orders(changed, step_of(COMPARED), patch=Patch("not tried", DIFF, BASE))
    first, second, third, fourth = re.split(r"(?m)^  \d\. ", following)[1:]
    assert " ".join(first.split()).startswith("Fix GD101 of step 1: until then")
    assert second.startswith("Try the change.") and TRY in second
    assert third == "Apply the change:\n     patch -p1 < fix.diff\n"
    assert fourth.startswith("Run graphdoctor again.") and fourth.endswith(AGAIN)


def test_an_error_that_no_capture_meets_is_left_until_after_the_change() -> None:
    """A wrong replay is none of the captured step's if the statement stays outside."""
    changed = replace(step_of(COMPARED), change="replay the step", handled=(READ_LATER,))
    following = orders(changed, patch=Patch("not tried", DIFF, BASE))
    assert following.startswith("  1. Try the change.")
    assert "3. Run graphdoctor again." in following


def test_a_change_that_was_tried_is_applied_before_other_errors_are_fixed() -> None:
    changed = replace(step_of(SAFE), change="replay `model`")
    tried = Patch("same results", DIFF, BASE, tried="equal")
    alone = orders(changed, patch=tried)
    assert alone == "  Apply the change:\n     patch -p1 < fix.diff\n"
    first, second = re.split(r"(?m)^  \d\. ", orders(changed, step_of(COMPARED), patch=tried))[1:]
    assert first == "Apply the change:\n     patch -p1 < fix.diff\n"
    assert "the errors that are left, with their new" in second and second.endswith(AGAIN)


def test_errors_without_a_change_are_fixed_before_the_same_command() -> None:
    following = orders(step_of(COMPARED), patch=None)
    assert following.startswith("  Fix the errors of step 1, then run the same command again.")
    assert orders(step_of(SAFE), patch=None) == ""


def test_a_long_change_is_cut_and_says_where_the_rest_is() -> None:
    lines = "".join(f"+line_{number} = 0\n" for number in range(60))
    patch = Patch("not tried", f"--- a/train.py\n+++ b/train.py\n@@ -1,0 +1,60 @@\n{lines}", BASE)
    report = replace(of_program(replace(step_of(SAFE), change="replay")), patch=patch)
    page = program_page.render(report, Look(base=BASE))
    assert "... 20 more lines (--all shows them)\n" in page and "line_30" not in page
    assert "... 20 more lines in fix.diff\n" in program_page.render(
        report, Look(base=BASE), diff_file="fix.diff"
    )
    assert "line_30" in program_page.render(report, Look(base=BASE, show_all=True))


def test_a_long_change_shows_the_name_and_the_end_of_each_new_function() -> None:
    body = "".join(f"+    line_{number} = 0\n" for number in range(50))
    train = f"+@graphdoctor.capture\n+def train_step():\n{body}+    return loss\n+\n+\n"
    act = "+@graphdoctor.capture\n+@torch.no_grad()\n+def act(obs):\n+    return q(obs)\n"
    diff = f"--- a/train.py\n+++ b/train.py\n@@ -1,0 +1,60 @@\n{train}{act} old = 1\n-a = q(obs)\n+a = act(obs)\n"
    patch = Patch("not tried", diff, BASE)
    report = replace(of_program(replace(step_of(SAFE), change="replay")), patch=patch)
    page = program_page.render(report, Look(base=BASE))
    shown = (
        "def train_step():",
        "line_0 ",
        "return loss",
        "def act(obs):",
        "return q(obs)",
        "a = act(obs)",
    )
    assert all(each in page for each in shown) and "line_40" not in page
    assert "more lines of this function (--all shows them)\n" in page


def test_a_step_s_mode_is_shown_where_its_name_is_too_long() -> None:
    step = replace(step_of(SAFE), name=f"{'x' * 40}.py:31-34")
    page = program_page.render(of_program(step), Look(base=BASE, width=80))
    assert "  training, ..." in page and "x.py:31-34 " in page


def test_an_emulated_run_gives_no_speedup_of_the_whole_program() -> None:
    emulated = replace(of_program(step_of(COMPARED)), machine=COMPARED.machine)
    page = " ".join(program_page.render(emulated, Look(base=BASE)).split())
    assert "whole program" not in page and "in which the CPU also did the GPU's work" in page


def test_a_long_change_leaves_out_what_it_removes_and_shows_what_it_adds() -> None:
    removed = "".join(f"-line_{number} = 0\n" for number in range(30))
    added = "".join(f"+other_{number} = torch.rand(1)\n" for number in range(30))
    diff = f"--- a/train.py\n+++ b/train.py\n@@ -1,30 +1,30 @@\n{removed}{added}"
    changed = replace(step_of(SAFE), change="replay")
    report = replace(of_program(changed), patch=Patch("not tried", diff, BASE))
    page = program_page.render(report, Look(base=BASE))
    assert "... 28 more lines removed\n" in page
    assert "line_0 " in page and "line_29 " in page and "line_15" not in page
    assert all(f"other_{number} " in page for number in range(30))
    assert "= note: Each replay draws new random numbers.\n" in page


def test_steps_that_cannot_be_diagnosed_for_one_reason_share_a_warning() -> None:
    cannot = replace(step_of(None), reason="It runs on the CPU.")
    late = replace(cannot, reason="It ran once.")
    page = program_page.render(of_program(cannot, late, cannot), Look(base=BASE))
    assert "\nwarning: steps 1 and 3: It runs on the CPU.\n" in page
    assert "\nwarning: step 2: It ran once.\n" in page


def test_a_step_with_a_speedup_says_why_no_change_brings_it() -> None:
    """Such as one that the program captures already, when the diff was applied."""
    captured = replace(step_of(SAFE), no_change="its function is captured already")
    page = program_page.render(of_program(captured, captured), Look(base=BASE))
    assert "\nno change (steps 1 and 2): its function is captured already\n" in page
    slow = replace(captured, report=replace(SAFE, measurement=None, estimate=None, strategies=()))
    assert "no change" not in program_page.render(of_program(slow), Look(base=BASE))


def test_a_change_that_was_left_out_is_headed_so_and_says_why() -> None:
    patch = Patch("left out", tried="Step 1: a schedule changes the learning rate.")
    page = program_page.render(replace(of_program(step_of(SAFE)), patch=patch), Look(base=BASE))
    assert "change: left out\n" in page
    assert "= note: no diff: Step 1: a schedule changes the learning rate." in page


def test_predictions_name_the_gpu_and_its_host() -> None:
    estimate = replace(ESTIMATE, host="a slower server CPU")
    step = step_of(replace(SAFE, estimate=estimate, measurement=None))
    words = " ".join(program_page.render(of_program(step), Look(base=BASE)).split())
    assert f"predicted for {estimate.gpu} with a slower server CPU." in words


def test_all_adds_the_page_of_each_step() -> None:
    page = program_page.render(of_program(step_of(COMPARED)), Look(base=BASE, show_all=True))
    assert "Step 1: line 31 of branch.py" in page
    assert "4 steps of 12 were recorded, at 2.5x the usual step time." in page
    assert "What can be captured" in page and "Use --all" not in page


@pytest.mark.parametrize(
    "words",
    [
        ("train.py", "cpu"),
        ("train.py", "--device", "cuda"),
        ("train.py", "--", "x y"),
        ("-m", "package.train", "--steps", "3"),
        ("-m", "package.train"),
    ],
)
def test_a_printed_command_runs_the_program_with_its_own_arguments(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--device` and `--steps` are options of graphdoctor, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    report = replace(of_program(step_of(COMPARED)), command=words, is_on_cpu=True)
    commands = [order.command for order in program_page.orders_of(report, "") if order.command]
    assert commands
    for command in commands:
        parsed = make_parser().parse_args(shlex.split(command)[1:])
        assert program_of(parsed).command == words
