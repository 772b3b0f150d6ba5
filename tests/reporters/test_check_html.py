"""A check as one HTML file, and several as the history of a repository."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import graphdoctor
from graphdoctor.cli import main
from graphdoctor.reporters.check.html import Curve, Dated, curves_of, render_history
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.values.check import Check, Fault, Figures
from tests.support.checking import HOSTILE, checked, finding, hostile_check, report
from tests.support.parsed import Parsed
from tests.support.reports import SAFE


def with_figures(**figures: Figures | None) -> Check:
    check = checked({name: report() for name in figures})
    targets = tuple(replace(one, figures=figures[one.name]) for one in check.targets)
    return replace(check, targets=targets)


def history(*launches: int) -> list[Dated]:
    return [
        Dated(f"run-{number}", with_figures(net=Figures(2, count, 1, 1 - count / 1000)))
        for number, count in enumerate(launches)
    ]


def curve(checks: list[Dated], label: str, target: int = 0) -> Curve:
    (found,) = (one for one in curves_of(checks)[target].curves if one.label == label)
    return found


def page(check: Check) -> Parsed:
    return Parsed(written_as("html", check, Look()))


def test_new_findings_stand_in_the_margin_of_their_code() -> None:
    shown = page(checked({"net": report(finding(3), finding(9, source="y.item()"))}))
    ids = shown.all_of("id")
    assert {"finding-1", "finding-2", "code-1", "code-2"} <= set(ids) and len(ids) == len(set(ids))
    assert {target[1:] for target in shown.all_of("href")} <= set(ids)
    assert "FAILED" in shown.text and "models/net.py:9" in shown.text


def test_failed_target_is_told_with_its_frames() -> None:
    shown = page(checked({"net": Fault("failed", 3, "it broke", "line 7\n  boom")}))
    assert "it broke" in shown.text and "boom" in shown.text and "no report" in shown.text


def test_hostile_text_is_shown_and_makes_no_element() -> None:
    shown = page(hostile_check())
    assert "<script>alert(1)</script>" in shown.text
    assert not {"script", "img", "b-x"} & {tag for tag, _ in shown.elements}
    assert HOSTILE not in shown.text  # its control characters are made visible


def test_curves_go_from_the_oldest_to_the_newest() -> None:
    found = curve(history(800, 400, 100), "Launches")
    assert (found.first, found.last, found.word) == ("800", "100", "better")
    assert [x for x, _ in found.points] == sorted(x for x, _ in found.points)
    ys = [y for _, y in found.points]
    assert ys == sorted(ys)  # SVG counts down: fewer launches lie lower
    assert curve(history(800, 100), "Captured").word == "better"
    assert curve(history(100, 800), "Captured").word == "worse"
    assert curve(history(100, 800), "Waits").word == "same"


def test_curve_is_broken_where_a_check_has_no_figures() -> None:
    checks = history(5, 6, 7, 8, 9)
    failed = Dated("failed", with_figures(net=None))
    found = curve([*checks[:2], failed, *checks[3:]], "Launches")
    assert len(found.lines) == 2 and len(found.points) == 4


def test_target_that_came_later_has_a_curve_too() -> None:
    later = Dated("last", with_figures(net=Figures(0, 1, 1, 1.0), other=Figures(0, 3, 1, 1.0)))
    found = curve([*history(4), later], "Launches", target=1)
    assert (found.first, found.last, found.lines) == ("3", "3", ())


def test_history_is_of_the_last_check_and_names_all() -> None:
    text = Parsed(render_history(history(8, 4), Look())).text
    assert "2 checks, from run-0 to run-1" in text and "8 to 4, better" in text
    assert "History" not in page(history(8)[0].check).text


def test_command_shows_saved_checks_as_a_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for dated in history(9, 3):
        files.append(str(tmp_path / f"{dated.name}.json"))
        Path(files[-1]).write_text(written_as("json", dated.check, Look()), encoding="utf-8")
    assert main(["view", *files, "-o", "-"]) == 0
    assert capsys.readouterr().out == render_history(history(9, 3), Look())
    graphdoctor.Report.of(SAFE).save(tmp_path / "report.json")
    assert main(["view", str(tmp_path / "report.json"), *files, "-o", "-"]) == 2
    assert "is no check: several files are shown as the history" in capsys.readouterr().err
    assert main(["view", *files, str(tmp_path / "report.json"), "-o", "-"]) == 2
    assert "report.json is what `graphdoctor analyze` saved" in capsys.readouterr().err
