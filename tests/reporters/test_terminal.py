"""The page for people: its exact text, its order, and that no model's text can disturb it."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from graphdoctor.reporters.analysis import terminal
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page, wrap
from graphdoctor.values.captures import Need, Verification
from graphdoctor.values.figures import Range, ratio_range, share_range, time_range, time_text
from graphdoctor.values.finding import Certainty, Edit, Finding, IdleComment, Suppression
from graphdoctor.values.locations import Columns, Excerpt
from graphdoctor.values.report import IN_TRAIN_MODE, Report
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
    UNKNOWN,
    WRONG,
    at,
    strategy,
)

render = terminal.render
change = msgspec.structs.replace
ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("show_all", [False, True])
@pytest.mark.parametrize("name", GOLDEN_REPORTS)
def test_page_is_the_golden_one(name: str, show_all: bool) -> None:
    """After a wanted change: python -m tests.support.reports, and look at the difference."""
    expected = (GOLDEN / f"{name}{'_all' * show_all}.txt").read_text(encoding="utf-8")
    assert render(GOLDEN_REPORTS[name], Look(base=BASE, show_all=show_all)) == expected


@pytest.mark.parametrize("name", GOLDEN_REPORTS)
def test_the_default_page_fits_one_screen(name: str) -> None:
    page = render(GOLDEN_REPORTS[name], Look(base=BASE))
    assert page.count("\n") <= 40
    assert "Use --all for " in page


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
    assert "\x1b[1;31merror[GD101]" in render(PARTLY_SAFE, Look(color_system="standard"))


@pytest.mark.parametrize(
    ("verdict", "word", "sentence"),
    [
        ("safe", "SAFE", ""),
        ("partly-safe", "PARTLY SAFE", "As the code is, only parts of the step can run as CUDA graphs. "),
        ("unsafe", "UNSAFE", ""),
    ],
)  # fmt: skip
def test_verdict_is_the_first_word_and_the_reason_follows(
    verdict: str, word: str, sentence: str
) -> None:
    report = msgspec.convert({**msgspec.to_builtins(SAFE), "verdict": verdict}, Report)
    first, *rest = render(report, Look()).splitlines()
    assert first.startswith(f"{word}  ")
    assert " ".join(rest).startswith(
        f"{sentence}Nothing in the step stops a capture, and its replay"
    )


def test_unknown_begins_with_its_cause_and_what_to_do() -> None:
    page = render(UNKNOWN, Look(base=BASE))
    first, _, second, *_ = page.splitlines()
    assert first == "UNKNOWN  mlp.py (inference)"
    assert second.startswith("warning: No hazard was found, but")
    assert page.index("= help:") < page.index("Speedup")
    assert "on a machine with a GPU" in " ".join(page.split())
    on_gpu = render(change(UNKNOWN, machine=SAFE.machine), Look())
    assert "then run the same command again" in " ".join(on_gpu.split())
    no_gpu_runs_it = " ".join(render(change(UNKNOWN, runs_on_gpu=False), Look()).split())
    assert "machine with a GPU" not in no_gpu_runs_it
    assert "then run the same command again" in no_gpu_runs_it
    without_values = render(change(UNKNOWN, values="none"), Look())
    assert "= help: add `--values real`" in without_values


def test_worst_finding_comes_first() -> None:
    page = render(PARTLY_SAFE, Look())
    assert page.index("error[GD101]: ") < page.index("error[GD204]: ")


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
    assert page.count("(confirmed by a trial capture)") == 3 and page.count("= fix:") == 60
    assert all(re.search(rf"branch.py:{line}\n", page) for line in range(1, 61))
    everything = render(report, Look(show_all=True))
    assert everything.count("= fix:") == 60
    assert "--all" not in everything


def test_a_page_says_whether_a_gpu_confirmed_its_findings() -> None:
    on_gpu = change(PARTLY_SAFE, machine=change(PARTLY_SAFE.machine, device="cuda"))
    for report, is_emulated in ((on_gpu, False), (PARTLY_SAFE, True)):
        page = render(report, Look())
        assert "(confirmed by a trial capture)" in page
        assert ("used an emulated GPU" in page) == is_emulated


@pytest.mark.parametrize(
    ("certainties", "is_told"),
    [(("confirmed", "likely"), True), (("confirmed",), False), (("likely", "likely"), False)],
)
def test_a_page_says_why_the_trial_capture_confirmed_one_of_several_errors(
    certainties: tuple[Certainty, ...], is_told: bool
) -> None:
    findings = tuple(
        change(HOST_READ, certainty=certainty, location=at(number))
        for number, certainty in enumerate(certainties, start=1)
    )
    page = render(change(PARTLY_SAFE, findings=findings), Look(width=200))
    assert ("capture ends at its first error, so only that error is confirmed" in page) == is_told


def test_a_fix_below_the_first_three_has_its_code() -> None:
    fixes = ("Fix 1.", "Fix 2.", "Fix 3.", "Write:")
    findings = tuple(
        change(HOST_READ, fix=fix, fix_code=("x = 1",), location=change(at(line), line=line))
        for line, fix in enumerate(fixes, start=40)
    )
    page = render(change(PARTLY_SAFE, findings=findings), Look())
    assert "  = fix:  Write:\n          x = 1\n" in page


def test_notes_below_the_first_finding_have_no_code() -> None:
    slow = change(FROZEN_RATE, rule="GD302", effect="replay-is-slow", message="Too small. More.")
    page = render(change(PARTLY_SAFE, findings=(slow, HOST_READ)), Look(base=BASE))
    assert "\nnote[GD302]: Too small\n  --> models/branch.py:58\n  = note: More.\n" in page
    alone = render(change(PARTLY_SAFE, findings=(slow,)), Look(base=BASE))
    assert "= note: More." in alone and "= fix:  Give the optimizer" in alone


def test_the_speedup_after_all_fixes_is_beside_that_of_now() -> None:
    whole = change(COMPARED.estimate, whole_speedup=Range(1.8, 2.4, 3.2))
    page = render(change(COMPARED, estimate=whole), Look(base=BASE))
    assert "\n  fixed  2.4x (1.8x to 3.2x) if all fixes make the whole step one graph\n" in page
    assert "  fixed  " not in render(change(COMPARED, estimate=whole, findings=()), Look(base=BASE))


def test_the_last_line_says_what_to_do_next() -> None:
    fix = "fix the errors, then run the same command again."
    slow = change(FROZEN_RATE, effect="replay-is-slow")
    nothing = Recommendation(NO_STRATEGY, "Keep eager: no verified strategy is faster.")
    for report, following in (
        (PARTLY_SAFE, fix),
        (change(PARTLY_SAFE, findings=(HOST_READ,)), fix.replace("errors", "error")),
        (
            SAFE,
            "`model = graphdoctor.capture(model)` captures it; --all has the same in plain PyTorch.",
        ),
        (
            change(SAFE, recommendation=nothing),
            "keep eager: a graph is not predicted to be faster.",
        ),
    ):
        page = " ".join(render(report, Look(base=BASE)).split())
        assert page.endswith(f"Next: {following}")
    assert "Next: " not in render(change(UNKNOWN, findings=(slow,)), Look(base=BASE))


def test_a_speedup_of_code_to_paste_says_where_that_code_is() -> None:
    how = "\n         The same command with --all shows the code to paste.\n"
    assert how in render(COMPARED, Look(base=BASE))
    assert how not in render(COMPARED, Look(base=BASE, show_all=True)) + render(
        SAFE, Look(base=BASE)
    )


def test_a_speedup_stays_below_what_the_busy_gpu_allows() -> None:
    page = " ".join(render(PARTLY_SAFE, Look(base=BASE)).split())
    busy, eager = ESTIMATE.device_busy_us, ESTIMATE.eager_us
    assert f"per step, GPU busy {time_range(busy)} now 2.4x" in page
    assert ESTIMATE.speedup.mid <= eager.mid / busy.mid


def test_a_fix_that_replaces_text_shows_the_lines_as_they_become() -> None:
    def moved(line: int, code: str) -> Finding:
        place = change(at(line), line=line)
        edit = Edit(place.file, line, 5, line, 5 + len("make()"), "make(device)")
        return change(
            HOST_READ, location=place, excerpt=Excerpt(line, (code,)), columns=None, edits=(edit,)
        )

    both = (moved(50, "h = make()"), moved(51, "c = make()"))
    page = render(change(PARTLY_SAFE, findings=both), Look(base=BASE))
    assert (
        "= fix:  Change the lines to:\n           50: h = make(device)\n           51: c = make(device)\n"
        in page
    )
    elsewhere = change(both[1], edits=(change(both[1].edits[0], file="other.py"),))
    page = render(change(PARTLY_SAFE, findings=(both[0], elsewhere)), Look(base=BASE))
    assert "Change the line" not in page and "= fix:  Keep the decision" in page


def test_findings_with_one_fix_are_shown_as_one() -> None:
    second = change(HOST_READ, message="`y.item()` waits.", location=change(at(30), line=30))
    third = change(HOST_READ, location=change(at(60), line=60), certainty="likely")
    report = change(PARTLY_SAFE, findings=(third, HOST_READ, FROZEN_RATE, second))
    page = render(report, Look(base=BASE))
    assert page.count("= fix:") == 2
    assert "   = also: 2 more lines: models/branch.py:30, :60\n" in page
    assert "2 errors in 4 places." in page
    everything = render(report, Look(base=BASE, show_all=True))
    assert "= also: models/branch.py:30: `y.item()` waits\n" in everything
    assert everything.count("= fix:") == 2


def test_a_finding_in_a_library_shows_the_user_s_line_and_with_frames_all() -> None:
    deep = at(7, "/venv/lib/python3.11/site-packages/library/core.py")
    layer = at(70, "/venv/lib/python3.11/site-packages/library/layer.py")
    finding = change(HOST_READ, location=deep, stack=(layer, at(31), at(60)), excerpt=None)
    report = change(PARTLY_SAFE, findings=(finding,))
    page = render(report, Look(base=BASE))
    assert " = from: models/branch.py:31 in Branch.forward\n" in page
    assert page.count("= from:") == 1
    frames = render(report, Look(base=BASE, show_frames=True))
    where = [line.split()[2] for line in frames.splitlines() if "= from:" in line]
    assert where == [f"{layer.file}:70", "models/branch.py:31", "models/branch.py:60"]
    assert "= from:" not in render(PARTLY_SAFE, Look(base=BASE))


def test_suppressed_findings_are_counted_and_shown_with_all() -> None:
    known = change(HOST_READ, suppressed=Suppression("known since May", at(31)))
    idle = IdleComment(at(40), "GD104", "unused", "ignore[GD104] suppresses nothing")
    report = change(PARTLY_SAFE, findings=(FROZEN_RATE, known), idle_comments=(idle,))
    page = render(report, Look(base=BASE))
    assert "1 error, 1 suppressed." in page and "`graphdoctor explain GD204`" in page
    assert "GD101" not in page and page.startswith("PARTLY SAFE")
    assert "warning: models/branch.py:40: ignore[GD104] suppresses nothing\n" in page
    everything = render(report, Look(base=BASE, show_all=True))
    assert everything.index("Suppressed \u2500") < everything.index("GD101 host-read models/branch")
    assert "capture fails: known since May" in everything.replace("\n  ", " ")
    nothing_else = render(change(report, findings=(known,)), Look(base=BASE))
    assert "\n1 suppressed. Trials used an emulated GPU; no real one is needed." in nothing_else


def test_why_is_for_all() -> None:
    report = change(PARTLY_SAFE, findings=(HOST_READ,))
    page, everything = render(report, Look()), render(report, Look(show_all=True))
    assert "never wait for the device" not in page
    assert "= why:  While a graph is recorded" in everything


def test_the_marked_line_is_the_last_and_has_carets() -> None:
    rows = [row for row in render(PARTLY_SAFE, Look()).splitlines() if " | " in row]
    assert [row.split(" | ")[0].strip() for row in rows] == ["29", "30", "31", ""]
    assert rows[-1].endswith("^ capture fails, 2 times per step")
    code = rows[-2].partition(" | ")[2]
    assert rows[-1].partition(" | ")[2].count("^") == len(code.strip())
    some = change(HOST_READ, columns=Columns(12, 30))
    (under,) = (
        row for row in render(change(SAFE, findings=(some,)), Look()).splitlines() if "^" in row
    )
    assert under.index("^") - under.index("| ") - 2 == 11 and under.count("^") == 18


def test_a_label_without_room_beside_the_carets_is_below_them() -> None:
    text = "x = " + "a" * 62
    finding = change(HOST_READ, excerpt=Excerpt(31, (text,)))
    page = render(change(PARTLY_SAFE, findings=(finding,)), Look())
    rows = [row for row in page.splitlines() if " | " in row]
    assert rows[-2].endswith("^^^") and "^" not in rows[-1]
    assert rows[-1].endswith("capture fails, 2 times per step")
    assert max(map(cell_len, rows)) <= 80


def test_long_code_line_is_cut_off_visibly() -> None:
    finding = change(HOST_READ, excerpt=Excerpt(31, ("x = " + "a" * 200,)))
    page = render(change(PARTLY_SAFE, findings=(finding,)), Look())
    row = next(row for row in page.splitlines() if row.startswith("31 | "))
    assert cell_len(row) == 80
    assert row.endswith("a...")


def test_a_wrong_replay_is_an_error_with_tensor_size_and_line() -> None:
    wrong = change(SAFE, captures=(WRONG,), measurement=None, estimate=ESTIMATE)
    page = render(wrong, Look(base=BASE))
    words = " ".join(page.split())
    assert "error: a replay of the whole step differs from eager --> models/branch.py:58" in words
    assert "model.head.weight first differs in replay 2, by up to 0.0041" in words
    assert "written by aten.add_.Tensor at models/branch.py:58" in words
    assert "now none: the replay differs from eager" in words
    explained = render(change(PARTLY_SAFE, captures=(WRONG,), recommendation=None), Look())
    assert "a replay of the whole step differs" not in explained
    assert now_of(change(PARTLY_SAFE, captures=(WRONG,))).startswith("2.4x (1.8x to 3.2x) with 1 ")


def test_prediction_is_never_called_measured() -> None:
    page = render(change(SAFE, measurement=None, estimate=ESTIMATE), Look())
    assert "predicted for NVIDIA H100 SXM" in page
    assert "measured" not in page


def test_prediction_is_shown_beside_measurement() -> None:
    page = render(change(SAFE, estimate=ESTIMATE), Look(show_all=True))
    assert "predicted for NVIDIA H100 SXM" in page
    assert "measured on NVIDIA H200" in page


def test_what_was_not_checked_is_said() -> None:
    assert "note: The kernel `fused_gate`" in render(PARTLY_SAFE, Look())
    assert "Not checked   The kernel `fused_gate`" in render(PARTLY_SAFE, Look(show_all=True))
    many = change(PARTLY_SAFE, limits=tuple(f"Limit {number}." for number in range(5)))
    page = render(many, Look())
    assert "note: Limit 2.\nnote: 2 more notes (use --all)\n" in page


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
    assert "error[GD101]: [bold red]markup[/bold red]" in render(_with_text(HOSTILE[2]), Look())


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
    assert time_range(Range(900, 1100, 1500)) == "1.1 ms (0.9 to 1.5 ms)"
    assert time_range(Range(5, 5, 5)) == "5 \u00b5s"
    assert share_range(Range(0.5, 0.62, 0.7)) == "62% (50% to 70%)"
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
    page = render(report, Look(show_all=True))
    assert f"  Skipped       split-step, segments: {of_training}\n" in page
    assert "  modules   skipped\n    no module is safe\n" in page
    html = written_as("html", report, Look())
    assert f"<b>Skipped</b> split-step, segments: {of_training}" in html
    assert html.count(of_training) == 1
    none_left = written_as("html", change(COMPARED, strategies=rows[1:3]), Look())
    assert f"split-step, segments: {of_training}" in none_left
    assert "Table of strategies" not in none_left


def now_of(report: Report) -> str:
    """The speedup that can be had now, without its line breaks."""
    text = " ".join(render(report, Look()).split())
    return text.partition(" now ")[2]


def test_the_speedup_is_that_of_what_is_recommended() -> None:
    assert now_of(COMPARED).startswith("1.69x (1.13x to 2.2x) with a graph for each safe module ")
    assert now_of(COMPARED_ON_GPU).startswith("2.31x (2.25x to 2.36x) as one graph ")
    checked = Verification("verified", 3, 14, "bitwise")
    row = strategy("modules", predicted=Range(1.13, 1.69, 2.2), verification=checked)
    assert "; replays are bitwise equal to eager" in now_of(change(COMPARED, strategies=(row,)))
    near = change(checked, method="within eager's own deviation")
    report = change(COMPARED, strategies=(change(row, verification=near),))
    assert "; replays equal eager within its nondeterminism" in now_of(report)


def test_no_speedup_is_promised_above_the_advice_to_keep_eager() -> None:
    advice = Recommendation(NO_STRATEGY, "Keep eager: no verified strategy is faster.")
    report = change(COMPARED, recommendation=advice)
    assert now_of(report).startswith("none: no verified strategy is faster ")


def test_no_speedup_is_promised_of_regions_that_are_too_small() -> None:
    small = tuple(change(one, worthwhile=False) for one in PARTLY_SAFE.regions)
    now = now_of(change(PARTLY_SAFE, regions=small, recommendation=None))
    assert small and now.startswith("none: no region is large enough to pay off ")


def test_a_prediction_says_for_which_host() -> None:
    others = (OtherHost(2.0, 360.0, 60.0, 6.0), OtherHost(0.5, 90.0, 55.0, 1.64))
    estimate = change(ESTIMATE, host="a slower server CPU", on_other_hosts=others)
    report = change(SAFE, estimate=estimate, measurement=None)
    page = render(report, Look(base=BASE))
    assert "Speedup, predicted for NVIDIA H100 SXM with a slower server CPU\n" in page
    words = " ".join(render(report, Look(base=BASE, show_all=True)).split())
    assert "6x on a host half as fast; 1.64x on one twice as fast" in words
    web = written_as("html", report, Look(base=BASE))
    assert "Predicted for NVIDIA H100 SXM with a slower server CPU" in web


def test_a_region_that_pays_says_which_it_needs_and_what_stands_between() -> None:
    first, second = PARTLY_SAFE.regions
    needs = (Need("A", ("GD101", "GD204")), Need("AB"))
    last = change(second, worthwhile=True, needs=needs)
    page = render(change(PARTLY_SAFE, regions=(first, last)), Look(base=BASE, show_all=True))
    rows = [line for line in page.splitlines() if line.startswith("    Needs")]
    assert rows == ["    Needs       region A, through GD101, GD204; region AB"]


def test_inference_of_a_model_in_train_mode_is_named_beside_the_verdict() -> None:
    trained = change(SAFE, target=change(SAFE.target, notes=(IN_TRAIN_MODE,)))
    head = render(trained, Look()).splitlines()[0]
    assert head.endswith("(inference, but the model is in train mode)")
    assert "train mode" not in render(SAFE, Look())
