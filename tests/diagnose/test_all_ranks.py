"""The reports of all ranks become one, which says what they agree on and where they part."""

from __future__ import annotations

from msgspec.structs import replace

from graphdoctor.diagnose.all_ranks import merged, merged_programs
from graphdoctor.values.locations import Location
from graphdoctor.values.program import ProgramReport, ProgramStep
from graphdoctor.values.report import Report
from tests.support.checking import finding, report


def test_what_all_ranks_say_is_said_of_all() -> None:
    one = report(finding(3))
    whole = merged([one, one])
    assert whole.reason == f"On all 2 ranks: {one.reason}"
    assert (whole.verdict, whole.findings, whole.limits) == ("unsafe", one.findings, one.limits)


def test_the_worst_rank_gives_the_verdict_and_is_named_with_what_it_alone_has() -> None:
    safe, unsafe = report(), report(finding(3))
    whole = merged([safe, unsafe, safe])
    assert (whole.verdict, whole.reason) == ("unsafe", f"On rank 1: {unsafe.reason}")
    assert [one.message for one in whole.findings] == [
        f"On rank 1 only: {unsafe.findings[0].message}"
    ]
    assert [(one.rank, one.verdict) for one in whole.ranks] == [
        (0, "safe"), (1, "unsafe"), (2, "safe"),
    ]  # fmt: skip


def test_of_ranks_that_are_as_bad_the_one_with_most_findings_gives_the_reason() -> None:
    few, more = report(finding(3)), report(finding(3), finding(9))
    more = replace(more, reason="Two hazards.")
    assert merged([few, more, few]).reason == "On rank 1: Two hazards."
    assert merged([more, few]).reason == "On rank 0: Two hazards."


def test_a_program_of_other_ranks_adds_no_step_to_those_of_the_first() -> None:
    found = merged_programs([program(step("a", report())), program(step("b", report()))])
    assert [(one.name, one.report) for one in found.steps] == [("a", None)]


def test_ranks_that_run_other_operators_are_told() -> None:
    short = report()
    longer = replace(short, operators=short.operators + 1)
    assert merged([short, short]).limits == short.limits
    (said,) = set(merged([short, longer]).limits) - set(short.limits)
    assert f"{longer.operators} operators on rank 1" in said


def test_a_finding_of_some_ranks_names_these_and_one_of_all_ranks_names_none() -> None:
    common, only = finding(3), finding(9)
    first, second = merged([report(common, only), report(common), report(common, only)]).findings
    assert first == common
    assert second.message == f"On ranks 0, 2 only: {only.message}"


def test_each_limit_is_said_once_and_what_only_one_rank_lacks_too() -> None:
    first, second = report(limits=("a", "b")), report(limits=("b", "c"))
    assert merged([first, second]).limits == ("a", "b", "c")


def step(name: str, found: Report | None = None, reason: str = "") -> ProgramStep:
    place = Location("train.py", 7)
    return ProgramStep(name, place, 9, "training", 4, 1.0, 0.5, report=found, reason=reason)


def program(*steps: ProgramStep, code: int = 0, notes: tuple[str, ...] = ()) -> ProgramReport:
    return ProgramReport(
        1, "0", ("train.py",), None, "finished", code, 2.0, 1.0, steps, notes=notes
    )


def test_a_program_s_step_has_what_all_ranks_say_of_the_step_of_its_name() -> None:
    safe, unsafe = report(), report(finding(3))
    found = merged_programs(
        [program(step("a", safe), step("b", safe)), program(step("b", unsafe), step("a", safe))]
    )
    verdicts = {one.name: one.report and one.report.verdict for one in found.steps}
    assert verdicts == {"a": "safe", "b": "unsafe"}


def test_a_step_that_a_rank_did_not_diagnose_says_which_rank_and_why() -> None:
    mine, safe = step("a", report()), program(step("a", report()))
    for other, why in (
        (program(), "it was not seen there"),
        (program(step("a")), "it was not seen there"),
        (program(step("a", reason="Its loop changed.")), "Its loop changed."),
    ):
        (seen,) = merged_programs([program(mine), safe, other]).steps
        assert (seen.report, seen.reason) == (None, f"Not diagnosed on rank 2: {why}")
    (seen,) = merged_programs([program(step("a", reason="It raised.")), safe]).steps
    assert (seen.report, seen.reason) == (None, "Not diagnosed on rank 0: It raised.")


def test_the_program_s_own_figures_are_those_of_the_first_rank() -> None:
    other = replace(program(), command=("other.py",), wall_s=9.0, diagnosis_s=8.0)
    found = merged_programs([program(), other])
    assert (found.command, found.wall_s, found.diagnosis_s) == (("train.py",), 2.0, 1.0)


def test_a_rank_that_failed_gives_its_exit_code_and_is_named_where_the_first_did_not() -> None:
    fine = program(notes=("a",))
    assert (merged_programs([fine, fine]).exit_code, merged_programs([fine, fine]).notes) == (
        0, ("a",),
    )  # fmt: skip
    found = merged_programs([fine, program(code=3, notes=("b", "a")), program(code=-9)])
    assert found.exit_code == -9
    assert found.notes == ("a", "b", "Rank 1 ended with exit code 3.")
    found = merged_programs([program(code=1), program(code=2)])
    assert (found.exit_code, found.notes) == (2, ())
