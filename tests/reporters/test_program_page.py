"""The page of a program: its exact text, a row for each step, equal steps once, and the change as a frame."""

from __future__ import annotations

from msgspec.structs import replace
from rich.cells import cell_len

from graphdoctor.reporters import program_page
from graphdoctor.reporters.look import Look
from graphdoctor.values.program import CalledModule, Patch
from graphdoctor.values.report import RankOutcome
from tests.support.reports import (
    BASE,
    COMPARED,
    ESTIMATE,
    GOLDEN,
    PROGRAM,
    SAFE,
    of_program,
    step_of,
)


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
    assert "\n     SAFE: the whole step can run as one CUDA graph; speedup now: with the" in page
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


def test_a_change_that_was_not_tried_says_how_to_try_it() -> None:
    patch = Patch("not tried", PROGRAM.patch.diff if PROGRAM.patch else "", BASE)
    step = replace(step_of(SAFE), change="replay `model` as a CUDA graph")
    report = replace(of_program(step), patch=patch)
    page = program_page.render(report, Look(base=BASE))
    assert "change (step 1): replay `model` as a CUDA graph\n  --> train.py:16\n" in page
    command = "try the change: graphdoctor run --diff fix.diff train.py --epochs 1"
    assert f"\n{command.capitalize()}\n" in page
    on_cpu = program_page.render(replace(report, is_on_cpu=True), Look(base=BASE))
    assert f"Move the model and its inputs to the GPU, then {command}" in " ".join(on_cpu.split())
    placed = replace(step, modules=(CalledModule("Net", "model", "train.py", 12),))
    on_cpu = program_page.render(
        replace(of_program(placed), patch=patch, is_on_cpu=True), Look(base=BASE)
    )
    first = 'Add `model.to("cuda")` after line 12 of train.py, and move the inputs to the GPU'
    assert f"{first}, then {command}" in " ".join(on_cpu.split())


def test_a_change_that_holds_spares_the_reader_the_fixes_of_its_step() -> None:
    cured, other = replace(step_of(COMPARED), cured=("GD101",)), step_of(COMPARED)
    page = program_page.render(of_program(cured, other), Look(base=BASE))
    first, _, second = page.partition("error[GD101]: step 2: ")
    fix = "= fix:  Apply the change above, which handles this: it reads the value"
    assert first.count(fix) == 1 and "Keep the decision" not in first
    assert fix not in second and "Keep the decision" in second
    assert "= then: speedup" not in first and "= then: speedup 2.4x" in second


def test_a_change_names_the_errors_that_it_leaves() -> None:
    patch = Patch("not tried", PROGRAM.patch.diff if PROGRAM.patch else "", BASE)
    step = replace(step_of(COMPARED), change="replay the step", cured=("GD204",))
    page = program_page.render(replace(of_program(step), patch=patch), Look(base=BASE))
    assert "= note: the change leaves GD101 of step 1 for you to fix\n" in page


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
