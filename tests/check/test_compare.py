"""`graphdoctor diff`: what a change did, told from two saved reports."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from graphdoctor.check.compare import compare
from graphdoctor.cli import main
from graphdoctor.reporters.formats import names_of, written_as
from graphdoctor.reporters.look import Look
from graphdoctor.values.captures import Region
from graphdoctor.values.check import TargetChange
from graphdoctor.values.figures import Range
from graphdoctor.values.report import Report
from tests.support.checking import HOSTILE, checked, finding, report
from tests.support.reports import ESTIMATE, MEASUREMENT, PARTLY_SAFE, REGION, SAFE

change = msgspec.structs.replace


def between(before: Report, after: Report) -> TargetChange:
    (target,) = compare({"net": before}, {"net": after}, names=("a", "b")).targets
    return target


def regions(*found: Region) -> Report:
    return change(PARTLY_SAFE, regions=found)


def test_equal_reports_are_the_same() -> None:
    assert between(PARTLY_SAFE, PARTLY_SAFE).is_same


def test_findings_are_new_gone_or_moved() -> None:
    before = report(finding(3, source="stays()"), finding(9, source="goes()"))
    after = report(finding(5, source="stays()"), finding(7, source="comes()"))
    target = between(before, after)
    assert [one.location.line for one in target.new if one.location] == [7]
    assert [one.location.line for one in target.gone if one.location] == [9]
    assert [(one.before.line, one.finding.location.line) for one in target.moved] == [(3, 5)]


def test_checkouts_in_two_folders_are_compared_by_their_relative_paths() -> None:
    def made_in(folder: str) -> Report:
        info = change(PARTLY_SAFE.target, file="models/net.py")
        return change(report(finding(file=f"{folder}/models/net.py")), target=info)

    assert between(made_in("/one/checkout"), made_in("/two")).is_same


FIRST = change(REGION, name="A", modules=("first",), operators=10)
SECOND = change(REGION, name="B", modules=("second",), operators=10)
FIRST_AGAIN = change(REGION, name="C", modules=("first",), operators=4)
BOTH = change(REGION, name="A", modules=("first", "second"), operators=20)


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ((FIRST,), (change(FIRST, operators=12, name="X"),), ["grown"]),
        ((FIRST,), (change(FIRST, operators=8),), ["shrunk"]),
        ((FIRST, SECOND), (FIRST,), ["lost"]),
        ((FIRST,), (FIRST, SECOND), ["new"]),
        ((BOTH,), (FIRST, SECOND), ["split"]),
        ((FIRST, SECOND), (BOTH,), ["merged"]),
        ((FIRST, SECOND), (SECOND, FIRST), []),
        ((FIRST, FIRST_AGAIN), (FIRST, FIRST_AGAIN), []),
        ((FIRST, FIRST_AGAIN), (FIRST,), ["lost"]),
        ((FIRST, FIRST), (FIRST, FIRST, FIRST), ["new"]),
        ((FIRST, FIRST_AGAIN), (change(FIRST, operators=14),), ["merged"]),
    ],
)
def test_regions_are_known_again_by_what_they_run(
    before: tuple[Region, ...], after: tuple[Region, ...], kinds: list[str]
) -> None:
    found = between(regions(*before), regions(*after)).regions
    assert [one.kind for one in found] == kinds


def test_regions_that_became_the_whole_step_are_not_lost() -> None:
    """Where a fix takes the cuts away; optimizer and model have no module in common."""
    parts = (FIRST, change(SECOND, modules=(), phases=("optimizer",), operators=1, launches=1))
    whole = change(SAFE, regions=(change(BOTH, phases=("forward", "optimizer")),))
    (became,) = between(regions(*parts), whole).regions
    assert became.kind == "merged" and became.text.endswith(", the whole step")
    assert "region B (1 operator, 1 launch)" in became.text


def test_two_targets_that_may_not_be_the_same_are_told_apart() -> None:
    changes = compare({"net": PARTLY_SAFE}, {"other": PARTLY_SAFE}, names=("a", "b"))
    assert changes.notes == ("the two sides differ in target: net and other",)


def test_ranges_that_overlap_are_neither_better_nor_worse() -> None:
    def at(low: float, high: float) -> Report:
        speedup = Range(low, (low + high) / 2, high)
        return change(PARTLY_SAFE, estimate=change(ESTIMATE, speedup=speedup))

    def verdicts(before: Report, after: Report) -> list[bool | None]:
        return [figure.is_better for figure in between(before, after).figures]

    assert verdicts(at(1, 2), at(1.5, 3)) == [None]
    assert verdicts(at(1, 2), at(2.5, 3)) == [True]
    assert verdicts(at(2.5, 3), at(1, 2)) == [False]
    assert verdicts(at(1, 2), at(2, 3)) == verdicts(at(2, 3), at(1, 2)) == [None]  # they touch


@pytest.mark.parametrize("figure", ["eager_us", "graph_us"])
def test_of_times_the_shorter_is_better(figure: str) -> None:
    short, long = Range(1, 2, 3), Range(4, 5, 6)

    def at(time: Range) -> Report:
        return change(PARTLY_SAFE, estimate=change(ESTIMATE, **{figure: time}))

    (slower,) = between(at(short), at(long)).figures
    (faster,) = between(at(long), at(short)).figures
    assert (slower.is_better, faster.is_better) == (False, True)
    assert (slower.before, slower.after) == ("2 µs (1 to 3 µs)", "5 µs (4 to 6 µs)")
    nothing = between(change(PARTLY_SAFE, estimate=None), at(short)).figures
    assert [one.is_better for one in nothing if one.before == "none"] == [None] * 3


def test_measurements_of_two_gpus_are_not_judged() -> None:
    slower = change(MEASUREMENT, speedup=1.1, speedup_low=1.05, speedup_high=1.2)

    def measured(one: object) -> Report:
        return change(PARTLY_SAFE, measurement=one)

    same = between(measured(MEASUREMENT), measured(slower)).figures
    other = between(measured(MEASUREMENT), measured(change(slower, gpu="T4"))).figures
    assert [figure.is_better for figure in (*same, *other)] == [False, None]
    faster = between(measured(slower), measured(MEASUREMENT)).figures
    touching = change(MEASUREMENT, speedup_low=1.2)
    not_sure = between(measured(slower), measured(touching)).figures
    back = between(measured(touching), measured(slower)).figures
    assert [one.is_better for one in (*faster, *not_sure, *back)] == [True, None, None]


def test_targets_of_one_side_are_named() -> None:
    changes = compare(
        {"a": report(), "b": report()}, {"b": report(), "c": report()}, names=("", "")
    )
    assert {one.name: (one.before, one.after) for one in changes.targets} == {
        "a": ("safe", None),
        "b": ("safe", "safe"),
        "c": (None, "safe"),
    }


@pytest.mark.parametrize("name", names_of("Changes"))
def test_hostile_text_is_never_obeyed(name: str) -> None:
    nasty = finding(file=HOSTILE, name=HOSTILE, message=HOSTILE)
    changes = compare({HOSTILE: report()}, {HOSTILE: report(nasty)}, names=(HOSTILE, HOSTILE))
    text = written_as(name, changes, Look())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e]", text)
    assert not any(line.lstrip().startswith("::error title") for line in text.splitlines())
    if name == "markdown":
        outside_code = re.sub(r"(?s)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
        assert "<script" not in outside_code and "@nobody" not in outside_code


def test_reports_of_analyze_and_of_check_are_both_read(tmp_path: Path, capsys) -> None:
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    one.write_text(written_as("json", report(), Look()), encoding="utf-8")
    check = checked({"net": report(finding())})
    many.write_text(written_as("json", check, Look()), encoding="utf-8")
    assert main(["diff", str(one), str(many), "--color=never"]) == 0
    out = capsys.readouterr().out
    assert "safe -> unsafe" in out and "New" in out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ('{"schema_version": 1', "cut short"),
        ('{"schema_version": 99}', "newer than version 1"),
        ('{"kind": "check", "schema_version": 99}', "check schema version 99"),
        ("[]", "not a graphdoctor report"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(
    text: str, sentence: str, tmp_path: Path, capsys
) -> None:
    path = tmp_path / "r.json"
    path.write_text(text, encoding="utf-8")
    assert main(["diff", str(path), str(path)]) == 2
    assert sentence in capsys.readouterr().err


def test_missing_report_is_named(tmp_path: Path, capsys) -> None:
    assert main(["diff", str(tmp_path / "gone.json"), "x"]) == 2
    assert "gone.json: No such file" in capsys.readouterr().err


def test_diff_needs_no_torch(tmp_path: Path) -> None:
    from tests.docs.test_packaging import HEAVY, calling, imported_by

    path = tmp_path / "r.json"
    path.write_text(written_as("json", report(), Look()), encoding="utf-8")
    assert imported_by(calling("diff", str(path), str(path))).isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["check", "baseline", "diff", "init", "show-settings"])
def test_help_of_the_checks_imports_nothing_heavy(command: str) -> None:
    from tests.docs.test_packaging import HEAVY, calling, imported_by

    assert imported_by(calling(command, "--help")).isdisjoint((*HEAVY, "rich", "msgspec"))
