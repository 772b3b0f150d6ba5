"""The page for people: its exact text, its order, and that no model's text can disturb it."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from graphdoctor.reporters.analysis import REPORTERS
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page, wrap
from graphdoctor.values.captures import Need
from graphdoctor.values.figures import Range, ratio_range, share_range, time_range, time_text
from graphdoctor.values.finding import IdleComment, Suppression
from graphdoctor.values.locations import Excerpt
from graphdoctor.values.report import Report
from graphdoctor.values.speed import NO_STRATEGY, OtherHost, Recommendation
from tests.support.reports import (
    BASE,
    COMPARED,
    COMPARED_ON_GPU,
    ESTIMATE,
    FROZEN_RATE,
    GOLDEN,
    GOLDEN_REPORTS,
    HOST_READ,
    PARTLY_SAFE,
    SAFE,
    WRONG,
    at,
    strategy,
)

render = REPORTERS["terminal"]
change = msgspec.structs.replace
ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("name", GOLDEN_REPORTS)
def test_page_is_the_golden_one(name: str) -> None:
    """After a wanted change: python -m tests.support.reports, and look at the difference."""
    expected = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    assert render(GOLDEN_REPORTS[name], Look(base=BASE)) == expected


@pytest.mark.parametrize("name", GOLDEN_REPORTS)
def test_lines_fit_80_columns(name: str) -> None:
    page = render(GOLDEN_REPORTS[name], Look(base=BASE))
    assert max(cell_len(line) for line in page.splitlines()) <= 80


def _prose(page: str) -> list[str]:
    """Without code to paste, which is kept as it is."""
    return [
        line for line in page.splitlines() if not re.match(r" {4}(\S.*[=()]|#|with|    )", line)
    ]


@pytest.mark.parametrize("width", [60, 67, 72, 100])
@pytest.mark.parametrize("name", GOLDEN_REPORTS)
def test_narrow_and_wide_pages_break_between_words_only(name: str, width: int) -> None:
    page = render(GOLDEN_REPORTS[name], Look(width=width, base=BASE, show_all=True))
    longest = [line for line in _prose(page) if cell_len(line) > width]
    assert [line for line in longest if len(line.split()) > 2] == []
    at_80 = render(GOLDEN_REPORTS[name], Look(base=BASE, show_all=True))
    if not re.search(r"[.]{3}$", page + at_80, re.M):  # where no code is cut off
        words, there = ({word.strip(",") for word in text.split()} for text in (at_80, page))
        assert {word for word in words - there if "\u2500" not in word} == set()


@pytest.mark.parametrize("name", GOLDEN_REPORTS)
def test_colours_change_nothing_but_colours(name: str) -> None:
    plain = render(GOLDEN_REPORTS[name], Look())
    coloured = render(GOLDEN_REPORTS[name], Look(color_system="truecolor"))
    assert "\x1b[" in coloured
    without = ESCAPE_SEQUENCE.sub("", coloured)
    assert [line.rstrip() for line in without.splitlines()] == plain.splitlines()


def test_no_coloured_line_has_a_blank_behind_its_last_column() -> None:
    """Which would make a terminal begin another line."""
    page = Page(Look(width=60, color_system="truecolor"))
    page.wrapped(("x" * 53, "bold"), (" in this run", "dim"), indent=4)
    lines = ESCAPE_SEQUENCE.sub("", page.render()).splitlines()
    assert lines == [f"{'x' * 53} in", "    this run"]
    page.wrapped(("x" * 60, "bold"), (" in this run", "dim"), indent=4)
    assert max(map(cell_len, ESCAPE_SEQUENCE.sub("", page.render()).splitlines())) == 60


def test_colours_are_used_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line has decided already: --color always overrules NO_COLOR."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[1;31mcapture fails" in render(PARTLY_SAFE, Look(color_system="standard"))


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        ("safe", "SAFE"),
        ("partly-safe", "PARTLY SAFE"),
        ("unsafe", "UNSAFE"),
        ("unknown", "UNKNOWN"),
    ],
)
def test_verdict_is_the_first_word_and_the_reason_the_second_line(verdict: str, word: str) -> None:
    report = msgspec.convert({**msgspec.to_builtins(SAFE), "verdict": verdict}, Report)
    first, second, *_ = render(report, Look()).splitlines()
    assert first.startswith(f"{word}  ")
    assert second == "Nothing in the step stops a capture, and its replay computes what eager"


def test_worst_finding_comes_first() -> None:
    page = render(PARTLY_SAFE, Look())
    assert page.index("GD101 host-read: capture fails") < page.index("GD204 frozen-learning-rate:")


def test_long_path_is_never_broken() -> None:
    path = "/data/" + "very_long_folder_name/" * 8 + "model.py"
    finding = change(HOST_READ, location=change(HOST_READ.location, file=path))
    page = render(change(PARTLY_SAFE, findings=(finding,)), Look())
    assert f"{path}:31" in page.replace("\n", " ").split()


def test_only_the_worst_findings_are_shown_in_full() -> None:
    findings = tuple(
        change(HOST_READ, fix=f"Fix {line}.", location=change(HOST_READ.location, line=line))
        for line in range(1, 61)
    )
    report = change(PARTLY_SAFE, findings=findings)
    page = render(report, Look())
    assert page.count("    What  ") == 8
    assert all(f"{line:>2}  GD101 host-read" in page for line in range(1, 61))
    assert "also shows the other 52 findings in full" in " ".join(page.split())
    everything = render(report, Look(show_all=True))
    assert everything.count("    What  ") == 60
    assert "--all" not in everything


def test_findings_with_one_fix_are_shown_as_one() -> None:
    second = change(HOST_READ, message="`y.item()` waits.", location=change(at(30), line=30))
    third = change(HOST_READ, location=change(at(60), line=60), certainty="likely")
    report = change(PARTLY_SAFE, findings=(third, HOST_READ, FROZEN_RATE, second))
    page = render(report, Look(base=BASE))
    assert page.count("    Fix   ") == 2
    assert page.count("    Why   ") == 2
    order = [
        " 1  GD101 host-read: capture fails, confirmed",
        "The same fix is for:",
        " 2  GD101 host-read models/branch.py:30 capture fails (2x)",
        "\u25b8 30 \u2502 tmp = self.first(x)",
        "What  `y.item()` waits.",
        " 3  GD101 host-read models/branch.py:60 capture fails (2x)",
        " 4  GD204 frozen-learning-rate",
    ]
    places = [page.index(text) for text in order]
    assert places == sorted(places)
    everything = render(report, Look(base=BASE, show_all=True))
    assert everything.count("    What  ") == 4
    assert everything.count("    Fix   ") == 2


def test_a_finding_in_a_library_shows_the_user_s_line_and_with_frames_all() -> None:
    deep = at(7, "/venv/lib/python3.11/site-packages/library/core.py")
    layer = at(70, "/venv/lib/python3.11/site-packages/library/layer.py")
    finding = change(HOST_READ, location=deep, stack=(layer, at(31), at(60)), excerpt=None)
    report = change(PARTLY_SAFE, findings=(finding,))
    page = render(report, Look(base=BASE))
    assert "called from models/branch.py:31 in Branch.forward\n" in page
    assert page.count("called from") == 1
    frames = render(report, Look(base=BASE, show_frames=True))
    where = [line.split()[2] for line in frames.splitlines() if "called from" in line]
    assert where == [f"{layer.file}:70", "models/branch.py:31", "models/branch.py:60"]
    assert "called from" not in render(PARTLY_SAFE, Look(base=BASE))


def test_suppressed_findings_are_kept_apart_with_their_reasons() -> None:
    known = change(HOST_READ, suppressed=Suppression("known since May", at(31)))
    idle = IdleComment(at(40), "GD104", "unused", "ignore[GD104] suppresses nothing")
    report = change(PARTLY_SAFE, findings=(FROZEN_RATE, known), idle_comments=(idle,))
    page = render(report, Look(base=BASE))
    assert "Findings      1 makes replays wrong; 1 suppressed\n" in page
    assert " 1  GD204" in page
    assert page.index("Suppressed \u2500") < page.index("GD101 host-read models/branch.py:31")
    assert "capture fails: known since May" in page.replace("\n  ", " ")
    assert "models/branch.py:40: ignore[GD104] suppresses nothing" in page
    assert page.startswith("PARTLY SAFE")
    nothing_else = render(change(report, findings=(known,)), Look(base=BASE))
    assert "Findings      none; 1 suppressed\n" in nothing_else
    assert "Do first" not in nothing_else


def test_first_paragraph_of_why_is_enough_at_first() -> None:
    report = change(PARTLY_SAFE, findings=(HOST_READ,))
    assert "never wait for the device" in render(report, Look())
    assert "A replay runs without the host" not in render(report, Look())
    assert "A replay runs without the host" in render(report, Look(show_all=True))


def test_marked_line_is_the_finding_s() -> None:
    rows = [row for row in render(PARTLY_SAFE, Look()).splitlines() if "\u2502" in row]
    assert [row.split("\u2502")[0].split() for row in rows] == [
        ["29"],
        ["30"],
        ["\u25b8", "31"],
        ["32"],
    ]


def test_long_code_line_is_cut_off_visibly() -> None:
    finding = change(HOST_READ, excerpt=Excerpt(31, ("x = " + "a" * 200,)))
    (row,) = (
        row
        for row in render(change(PARTLY_SAFE, findings=(finding,)), Look()).splitlines()
        if "\u2502" in row
    )
    assert cell_len(row) == 80
    assert row.endswith("a...")


def test_wrong_replay_names_tensor_size_and_line() -> None:
    words = " ".join(render(change(PARTLY_SAFE, captures=(WRONG,)), Look(base=BASE)).split())
    assert "the whole step, as one graph; its replay is WRONG" in words
    assert "model.head.weight first differs in replay 2, by up to 0.0041" in words
    assert "written by aten.add_.Tensor at models/branch.py:58" in words


def test_prediction_is_never_called_measured() -> None:
    page = render(change(SAFE, measurement=None, estimate=ESTIMATE), Look())
    assert "predicted for NVIDIA H100 SXM" in page
    assert "measured" not in page


def test_prediction_is_shown_beside_measurement() -> None:
    page = render(change(SAFE, estimate=ESTIMATE), Look())
    assert "predicted for NVIDIA H100 SXM" in page
    assert "measured on NVIDIA H200" in page


def test_what_was_not_checked_is_said() -> None:
    assert "Not checked   The kernel `fused_gate`" in render(PARTLY_SAFE, Look())


HOSTILE = (
    "two\nlines",
    "\x1b[2J\x1b[31mred",
    "[bold red]markup[/bold red] [/] [link=x]",
    "\ud800 lone",
    "bell\x07 back\x08 \x9b31m del\x7f",
    "\u202egnihton",
    "\u2028separator",
    ":smile:",
)


def _with_text(text: str) -> Report:
    """A report with `text` wherever a model can put its own."""
    place = change(HOST_READ.location, file=text + ".py", function=text)
    finding = change(
        HOST_READ,
        message=text,
        module=text,
        operator=text,
        location=place,
        excerpt=Excerpt(31, (text, text)),
    )
    (difference,) = WRONG.verification.differences
    wrong = change(
        WRONG,
        verification=change(
            WRONG.verification,
            differences=(change(difference, tensor=text, operator=text, detail=text),),
        ),
    )
    region = change(PARTLY_SAFE.regions[0], modules=(text, text), reason=text)
    return change(
        PARTLY_SAFE,
        reason=text,
        target=change(PARTLY_SAFE.target, name=text, file=text, notes=(text,)),
        findings=(finding,) * 9,
        regions=(region,),
        captures=(wrong, change(WRONG, status="refused", reason=text)),
        safe_modules=(text,),
        limits=(text,),
        trace_files=(text,),
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_not_obeyed(text: str) -> None:
    _assert_harmless(text)


@given(st.text(st.characters(exclude_categories=()), max_size=40))
def test_any_text_is_shown_and_not_obeyed(text: str) -> None:
    _assert_harmless(text)


def _assert_harmless(text: str) -> None:
    text = f"x{text}"  # blank text may leave lines out, which is no harm
    harmless = _with_text("x")
    page = render(_with_text(text), Look(width=10_000))
    assert all(char.isprintable() or char == "\n" for char in page)
    page.encode("utf-8")
    assert page.count("\n") == render(harmless, Look(width=10_000)).count("\n")
    coloured = render(_with_text(text), Look(width=10_000, color_system="standard"))
    without = ESCAPE_SEQUENCE.sub("", coloured)
    assert [line.rstrip() for line in without.split("\n")] == page.split("\n")


def test_markup_of_a_message_is_kept_as_it_is() -> None:
    assert "What  [bold red]markup[/bold red]" in render(_with_text(HOSTILE[2]), Look())


@given(st.text("ab \u4e00", max_size=200), st.integers(4, 40))
def test_wrapping_keeps_every_word_and_the_width(text: str, width: int) -> None:
    lines = list(wrap(text, width))
    assert " ".join(lines) == text
    assert all(cell_len(line) <= width or " " not in line for line in lines)


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0.0, "0 \u00b5s"),
        (1.234, "1.23 \u00b5s"),
        (12.34, "12.3 \u00b5s"),
        (180.4, "180 \u00b5s"),
        (1320.0, "1.32 ms"),
        (2_500_000.0, "2.5 s"),
        (float("nan"), "unknown"),
    ],
)
def test_time_has_three_digits_and_a_unit(time_us: float, text: str) -> None:
    assert time_text(time_us) == text


def test_range_shows_its_bounds_in_one_unit() -> None:
    assert time_range(Range(900, 1100, 1500)) == "1.1 ms (0.9 to 1.5)"
    assert time_range(Range(5, 5, 5)) == "5 \u00b5s"
    assert share_range(Range(0.5, 0.62, 0.7)) == "62% (50 to 70%)"
    assert ratio_range(Range(1.8, 2.4, float("inf"))) == "unknown"


def test_strategies_that_are_skipped_for_one_reason_share_a_line() -> None:
    of_training = "it takes training steps only"
    rows = (
        strategy("whole"),
        strategy("split-step", "unfit", reason=of_training),
        strategy("segments", "unfit", reason=of_training),
        strategy("modules", "unfit", reason="no module is safe"),
    )
    report = change(COMPARED, strategies=rows)
    page = render(report, Look())
    assert f"  Skipped       split-step, segments: {of_training}\n" in page
    assert "  modules   skipped\n    no module is safe\n" in page
    html = REPORTERS["html"](report, Look())
    assert f"<b>Skipped</b> split-step, segments: {of_training}" in html
    assert html.count(of_training) == 1
    none_left = REPORTERS["html"](change(COMPARED, strategies=rows[1:3]), Look())
    assert f"split-step, segments: {of_training}" in none_left
    assert "Table of strategies" not in none_left


def gain_of(report: Report) -> str:
    """The line of the headline, without its line breaks."""
    text = " ".join(render(report, Look()).split())
    return text.partition("Gain ")[2].partition(" launch-bound")[0]


def test_headline_s_gain_is_that_of_what_is_recommended() -> None:
    assert gain_of(COMPARED).startswith("1.69x (1.13 to 2.2) with modules, predicted for")
    assert gain_of(COMPARED_ON_GPU).startswith("1.42x (faster), measured")


def test_headline_promises_no_gain_above_the_advice_to_keep_eager() -> None:
    advice = Recommendation(NO_STRATEGY, "Keep eager: no verified strategy is faster.")
    gain = gain_of(msgspec.structs.replace(COMPARED, recommendation=advice))
    assert gain.startswith(
        "none verified as the code is; 55 µs (45 to 70) a step, 2.4x (1.8 to 3.2) with each"
    )
    assert "once it is cut there" in gain


def test_headline_promises_no_gain_of_a_graph_whose_replay_is_wrong() -> None:
    advice = Recommendation(NO_STRATEGY, "Keep eager: no verified strategy is faster.")
    report = msgspec.structs.replace(COMPARED, captures=(WRONG,), recommendation=advice)
    assert gain_of(report).startswith("none verified as the code is; 55 µs (45 to 70) a step, ")


def test_headline_promises_no_gain_of_regions_that_are_too_small() -> None:
    small = tuple(msgspec.structs.replace(one, worthwhile=False) for one in PARTLY_SAFE.regions)
    gain = gain_of(msgspec.structs.replace(PARTLY_SAFE, regions=small, recommendation=None))
    assert small and gain == "none as the code is: no region is large enough to pay;"


def test_a_prediction_leads_with_the_graph_s_time_and_says_for_which_host() -> None:
    others = (OtherHost(2.0, 360.0, 60.0, 6.0), OtherHost(0.5, 90.0, 55.0, 1.64))
    estimate = change(ESTIMATE, host="a slower server CPU", on_other_hosts=others)
    page = render(change(SAFE, estimate=estimate, measurement=None), Look(base=BASE))
    assert "55 µs (45 to 70) a step as a graph, 2.4x" in page
    words = " ".join(page.split())
    assert "fed by a slower server CPU" in words
    assert "6x on a host half as fast; 1.64x on one twice as fast" in words
    assert page.index("  As a graph") < page.index("  Eager")


def test_a_region_that_pays_says_which_it_needs_and_what_stands_between() -> None:
    first, second = PARTLY_SAFE.regions
    needs = (Need("A", ("GD101", "GD204")), Need("AB"))
    last = change(second, worthwhile=True, needs=needs)
    page = render(change(PARTLY_SAFE, regions=(first, last)), Look(base=BASE))
    rows = [line for line in page.splitlines() if line.startswith("    Needs")]
    assert rows == ["    Needs       region A, through GD101, GD204; region AB"]
