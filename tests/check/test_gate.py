"""The gate: what is new, what is worse, what is out of date, and the exit code that follows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.check.baseline import Accepted, Baseline, Entry, keys_of, make, normalised
from graphdoctor.check.baseline_update import accept, prune
from graphdoctor.check.gate import Outcome, entries_of, gate
from graphdoctor.check.settings.settings import Budgets, TargetSettings
from graphdoctor.check.step_figures import SYNC_RULES, beyond_baseline, beyond_budget, figures_of
from graphdoctor.rules import ALL_RULES
from graphdoctor.values.captures import CaptureOutcome, Verification
from graphdoctor.values.check import Fault, Figures, occurrences
from graphdoctor.values.locations import Location
from graphdoctor.values.report import Report
from tests.support.checking import checked, finding, project, report, target
from tests.support.reports import ESTIMATE, MEASUREMENT, PARTLY_SAFE, REGION, SAFE, VERIFIED

change = msgspec.structs.replace


def accepting(*findings: object, name: str = "net") -> Baseline:
    """The baseline that `graphdoctor baseline` would write."""
    outcome = Outcome(target(name), report(*findings))
    return accept([outcome], Baseline(), project(), is_complete=True).baseline


def test_clean_target_passes() -> None:
    assert checked({"net": report()}).exit_code == 0


def test_new_finding_fails() -> None:
    check = checked({"net": report(finding())})
    assert check.exit_code == 1
    assert [one.is_new for one in check.targets[0].findings] == [True]


def test_accepted_finding_passes_on_another_line_with_another_comment() -> None:
    baseline = accepting(finding(3, source="if x.item() > 0:"))
    moved = finding(90, source="    if  x.item() > 0:   # only sometimes")
    check = checked({"net": report(moved)}, baseline)
    assert check.exit_code == 0
    assert check.targets[0].findings[0].line == 90


def test_changed_code_is_a_new_finding_and_the_old_entry_is_out_of_date() -> None:
    check = checked({"net": report(finding(source="if y.item():"))}, accepting(finding()))
    assert check.exit_code == 1
    assert [entry.source for entry in check.stale] == ["if x.item() > 0:"]


def test_second_equal_line_is_new() -> None:
    check = checked({"net": report(finding(3), finding(30))}, accepting(finding(3)))
    assert [(one.line, one.is_new) for one in check.targets[0].findings] == [
        (3, False),
        (30, True),
    ]


def test_known_line_that_another_target_reaches_now_is_new_for_it() -> None:
    check = checked(
        {"net": report(finding()), "other": report(finding())}, accepting(finding(), name="net")
    )
    assert check.exit_code == 1
    (one,) = occurrences(check)
    assert one.targets == ("net", "other") and one.checked.is_new


@pytest.mark.parametrize(
    ("fail_on", "rule", "certainty", "code"),
    [
        ("error", "GD101", "likely", 1),
        ("error", "GD101", "unknown", 0),
        ("warning", "GD101", "unknown", 1),
        ("warning", "GD301", "likely", 0),
        ("note", "GD301", "likely", 1),
        ("never", "GD101", "confirmed", 0),
    ],
)
def test_fail_on_decides_by_severity(fail_on: str, rule: str, certainty: str, code: int) -> None:
    found = finding(rule=rule, certainty=certainty)
    assert checked({"net": report(found)}, fail_on=fail_on).exit_code == code


def test_entry_that_no_longer_occurs_fails_unless_that_is_allowed() -> None:
    baseline = accepting(finding())
    assert checked({"net": report()}, baseline).exit_code == 1
    assert checked({"net": report()}, baseline, allow_stale=True).exit_code == 0


def test_entry_of_a_target_that_is_gone_is_out_of_date() -> None:
    check = checked({"net": report()}, accepting(finding(), name="removed"))
    assert [entry.target for entry in check.stale] == ["removed"]


def test_entries_of_targets_that_were_not_asked_for_are_left_alone() -> None:
    outcome = Outcome(target(), report())
    baseline = accepting(finding(), name="removed")
    assert gate([outcome], baseline, project(), is_complete=False).stale == ()


def test_entries_of_tests_are_left_to_pytest() -> None:
    baseline = accepting(finding(), name="tests/test_net.py::test_net")
    assert checked({"net": report()}, baseline).exit_code == 0


def test_entry_about_speed_may_go() -> None:
    """Better figures of a GPU must fail nobody's pull request."""
    assert checked({"net": report()}, accepting(finding(rule="GD302"))).stale == ()


def test_failed_target_keeps_its_entries_and_costs_only_itself() -> None:
    fault = Fault("crashed", 3, "SIGSEGV")
    check = checked({"net": fault, "other": report()}, accepting(finding()))
    assert check.exit_code == 3 and check.stale == ()
    assert check.targets[1].report is not None


@pytest.mark.parametrize(("codes", "code"), [((3, 4), 3), ((4, 2), 2), ((4,), 4)])
def test_worst_fault_is_the_exit_code(codes: tuple[int, ...], code: int) -> None:
    results = {f"t{one}": Fault("failed", one, "no") for one in codes}
    assert checked({**results, "net": report(finding())}).exit_code == code


def test_wrong_replay_that_no_rule_explains_fails() -> None:
    unsafe = msgspec.structs.replace(report(), verdict="unsafe", reason="differs in output")
    check = checked({"net": unsafe})
    assert check.exit_code == 1
    assert "differs in output" in check.targets[0].breaches[0].message


def test_ignored_rules_do_not_count() -> None:
    results = {"net": report(finding())}
    assert checked(results, ignore=("GD1",)).exit_code == 0
    assert checked(results, select=("GD2",)).exit_code == 0
    assert checked(results, per_file_ignores=(("models/*.py", ("host-read",)),)).exit_code == 0
    assert checked(results, per_file_ignores=(("other/*.py", ("host-read",)),)).exit_code == 1


def test_finding_in_a_library_is_told_where_the_project_calls_it() -> None:
    found = finding(
        800, file="site-packages/lib/net.py", stack=(Location("models/net.py", 12, "forward"),)
    )
    (one,) = checked({"net": report(found)}).targets[0].findings
    assert (one.path, one.line) == ("models/net.py", 12)


def test_finding_that_no_file_of_the_project_calls_is_told_at_the_target() -> None:
    (one,) = (
        checked({"net": report(finding(8, file="site-packages/lib/net.py"))}).targets[0].findings
    )
    assert (one.path, one.line) == ("models/net.py", 1)


def test_finding_without_a_line_is_known_again() -> None:
    lost = finding(location=None, excerpt=None)
    assert checked({"net": report(lost)}, accepting(lost)).exit_code == 0


def test_figures_count_waits_launches_and_what_graphs_hold() -> None:
    figures = figures_of(PARTLY_SAFE)
    assert figures == Figures(syncs=2, launches=27, graphs=1, coverage=round(14 / 27, 4))
    assert figures_of(SAFE) == Figures(syncs=0, launches=0, graphs=1, coverage=1.0)


def test_region_whose_replay_is_not_verified_is_not_held() -> None:
    unverified = CaptureOutcome(
        "region A", "captured", verification=Verification("wrong", 3, 14, "bitwise")
    )
    lost = msgspec.structs.replace(PARTLY_SAFE, captures=(unverified,))
    assert figures_of(lost).coverage == 0.0


def test_coverage_is_that_of_the_iteration_with_least() -> None:
    half = msgspec.structs.replace(REGION, iterations=(0, 2))
    partly = msgspec.structs.replace(PARTLY_SAFE, regions=(half,), captures=(VERIFIED,))
    assert figures_of(partly).coverage == 0.0


def test_every_rule_that_counts_as_a_wait_exists() -> None:
    assert {rule.id for rule in ALL_RULES} >= SYNC_RULES


BEFORE = Figures(syncs=1, launches=20, graphs=1, coverage=0.5)


@pytest.mark.parametrize(
    ("now", "figures"),
    [
        (BEFORE, set()),
        (Figures(2, 20, 1, 0.5), {"syncs"}),
        (Figures(1, 21, 1, 0.5), {"launches"}),
        (Figures(1, 20, 2, 0.5), {"graphs"}),
        (Figures(1, 20, 1, 0.4), {"coverage"}),
        (Figures(1, 20, 2, 0.6), set()),  # more graphs that hold more
        (Figures(1, 30, 1, 1.0), set()),  # more launches, fewer of them outside of graphs
        (Figures(0, 10, 1, 1.0), set()),
    ],
)
def test_regression_is_a_worse_figure(now: Figures, figures: set[str]) -> None:
    assert {breach.figure for breach in beyond_baseline(now, BEFORE)} == figures


def test_figures_of_a_gpu_are_compared_with_a_gpu_s_only() -> None:
    """There they come from a trace. (The hand-built reports are a GPU's.)"""
    accepted = accepting()
    (worse,) = (change(one, syncs=0, launches=-1) for one in accepted.targets.values())
    for device, breaches in (("cuda", 1), ("emulated", 0)):
        baseline = make([], [change(worse, device=device)])
        check = checked({"net": report()}, baseline)
        assert len(check.targets[0].breaches) == breaches
        assert bool(check.notes) == (device == "emulated")


def test_another_torch_is_noted() -> None:
    (accepted,) = accepting().targets.values()
    check = checked({"net": report()}, make([], [change(accepted, torch="2.6.0")]))
    assert "made with torch 2.6.0 and this is torch 2.13.0" in check.notes[0]


counts = st.integers(0, 1000)


@given(st.builds(Figures, counts, counts, counts, st.floats(0, 1)))
def test_unchanged_figures_are_no_regression(figures: Figures) -> None:
    assert [*beyond_baseline(figures, figures)] == []


@pytest.mark.parametrize(
    ("budgets", "figure"),
    [
        (Budgets(max_syncs=0), "syncs"),
        (Budgets(max_launches=19), "launches"),
        (Budgets(max_graphs=0), "graphs"),
        (Budgets(min_coverage=0.51), "coverage"),
    ],
)
def test_budget_is_a_limit(budgets: Budgets, figure: str) -> None:
    assert [breach.figure for breach in beyond_budget(SAFE, BEFORE, budgets)] == [figure]


def test_budget_that_is_just_met_passes() -> None:
    budgets = Budgets(max_syncs=1, max_launches=20, max_graphs=1, min_coverage=0.5)
    assert [*beyond_budget(SAFE, BEFORE, budgets)] == []


def measured(speedup: float, high: float, graph_us: float) -> Report:
    change = msgspec.structs.replace(
        MEASUREMENT, speedup=speedup, speedup_high=high, eager_us=1000.0, graph_us=graph_us
    )
    return msgspec.structs.replace(SAFE, measurement=change)


@pytest.mark.parametrize(
    ("given_report", "fails"),
    [
        (measured(1.1, 1.15, 909.0), True),
        (measured(1.1, 1.25, 909.0), False),  # the interval reaches the limit
        (measured(1.19, 1.195, 840.0), False),  # misses by 6.7 us, which is less than 10
        (msgspec.structs.replace(SAFE, measurement=None, estimate=ESTIMATE), False),
    ],
)
def test_time_counts_only_measured_surely_and_by_enough(given_report: Report, fails: bool) -> None:
    breaches = [*beyond_budget(given_report, BEFORE, Budgets(min_speedup=1.2))]
    assert bool(breaches) == fails


@given(st.permutations(range(5)), st.lists(st.sampled_from(["a()", "b()"]), min_size=5, max_size=5))
def test_key_does_not_depend_on_the_order_of_findings(order: list[int], codes: list[str]) -> None:
    found = [finding(10 * number, source=code) for number, code in enumerate(codes)]
    keys = dict(zip(range(5), keys_of(found, root=Path(), otherwise=""), strict=True))
    shuffled = keys_of([found[index] for index in order], root=Path(), otherwise="")
    assert {index: shuffled[place] for place, index in enumerate(order)} == keys
    assert len(set(keys.values())) == 5


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("\tx =  y.item()  ", "x = y.item()"),
        ("x = y.item()  # why", "x = y.item()"),
        ('print("# no comment")', 'print("# no comment")'),
        ("foo(x,  # first", "foo(x,"),
        ('"""open', '"""open'),
        ("# only", ""),
    ],
)
def test_line_is_known_by_its_code(line: str, code: str) -> None:
    assert normalised(line) == code


def test_accepting_again_changes_nothing() -> None:
    outcomes = [Outcome(target(), report(finding(), finding(rule="GD302")))]
    first = accept(outcomes, Baseline(), project(), is_complete=True).baseline
    again = accept(outcomes, first, project(), is_complete=True)
    assert again.baseline == first
    assert (again.growth, again.added, again.dropped) == ((), 0, 0)


def test_growth_is_named() -> None:
    outcomes = [Outcome(target(), report(finding(source="y.item()")))]
    growth = accept(outcomes, accepting(), project(), is_complete=True).growth
    assert any("y.item()" in sentence for sentence in growth)
    assert any("wait" in sentence for sentence in growth)


def test_prune_only_drops() -> None:
    outcomes = [Outcome(target(), report(finding(source="y.item()")))]
    old = accepting(finding(), finding(source="z.item()"))
    pruned = prune(outcomes, old, project(), is_complete=True)
    assert pruned.baseline.entries == frozenset()
    assert (old.targets["net"].syncs, pruned.baseline.targets["net"].syncs) == (2, 1)


def test_prune_accepts_no_worse_figure() -> None:
    outcomes = [Outcome(target(), report(finding(), finding(source="y.item()")))]
    old = accepting(finding())
    assert prune(outcomes, old, project(), is_complete=True).baseline == old


def test_accepting_keeps_what_a_failed_target_had_and_what_belongs_to_tests() -> None:
    old = make(
        [Entry("a.py", "GD101", "x", "net"), Entry("t.py", "GD101", "x", "t.py::test")],
        [Accepted("net", 1, 2, 3, 0.5, "unsafe")],
    )
    outcomes = [Outcome(target(), Fault("crashed", 3, "no"))]
    assert accept(outcomes, old, project(), is_complete=True).baseline == old


def test_target_without_a_file_is_known_by_its_module() -> None:
    named = Outcome(TargetSettings("net", "package.module:net"), report(finding(location=None)))
    assert [entry.path for entry in entries_of(named, project())] == [""]
