"""`graphdoctor analyze --strategies --budget`, and the section of the page that shows what came of it."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from graphdoctor.cli import main
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import parsed
from graphdoctor.values.errors import Interrupted
from graphdoctor.values.figures import many_text, more_bytes_text
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import Report
from graphdoctor.values.speed import Recommendation, StrategyOutcome
from tests.support.reports import BASE, COMPARED_ON_GPU, PARTLY_SAFE, STRATEGIES_ON_GPU

ROOT = Path(__file__).parents[2]
Show = Callable[[Report], None]
Analysis = Callable[[Report], list[AnalyzeOptions]]


@pytest.fixture
def analysis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Analysis:
    """Puts a report in the place of the pipeline; gives the options that reach it."""
    (tmp_path / "model.py").touch()
    monkeypatch.chdir(tmp_path)

    def install(report: Report) -> list[AnalyzeOptions]:
        seen: list[AnalyzeOptions] = []

        def analyze_target(
            spec: str, options: AnalyzeOptions, tell: Callable[[str], None], show: Show
        ) -> Report:
            seen.append(options)
            tell("trying strategies")
            so_far = replace(report, recommendation=None, stages=())
            show(replace(so_far, strategies=report.strategies[:1]))
            show(so_far)
            tell("trying the last")
            return report

        module = ModuleType("graphdoctor.pipeline")
        vars(module)["analyze_target"] = analyze_target
        monkeypatch.setitem(sys.modules, "graphdoctor.pipeline", module)
        return seen

    return install


@pytest.mark.parametrize(
    ("arguments", "strategies", "budget_s"),
    [
        ("", None, 120.0),
        ("--strategies whole,modules", ("whole", "modules"), 120.0),
        ("--strategies none --budget 90", (), 90.0),
        ("--budget 2m", None, 120.0),
        ("--budget 1.5min", None, 90.0),
        ("--budget 30s", None, 30.0),
        ("--budget .5s", None, 0.5),
    ],
)
def test_names_and_times_reach_the_pipeline(
    analysis: Analysis, arguments: str, strategies: Any, budget_s: float
) -> None:
    seen = analysis(PARTLY_SAFE)
    assert main(["analyze", "model.py", *arguments.split()]) == 0
    assert (seen[0].strategies, seen[0].budget_s) == (strategies, budget_s)


@pytest.mark.parametrize("text", ["0", "-3s", "2 weeks", "fast", ""])
def test_a_budget_that_is_no_time_is_refused(
    analysis: Analysis, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    analysis(PARTLY_SAFE)
    assert main(["analyze", "model.py", f"--budget={text}"]) == 2
    assert "expected a time such as 120s or 2m" in capsys.readouterr().err


def test_no_names_are_refused(analysis: Analysis, capsys: pytest.CaptureFixture[str]) -> None:
    analysis(PARTLY_SAFE)
    assert main(["analyze", "model.py", "--strategies", ","]) == 2
    assert "expected names such as whole,modules" in capsys.readouterr().err


def test_an_unknown_name_is_one_sentence_with_the_nearest_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--device", "emulated", "--strategies", "hole"]
    assert main(["analyze", str(ROOT / "sample_models/gelu.py"), *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no strategy 'hole', did you mean 'whole'?" in said.err
    assert len(said.err.strip().splitlines()) == 1


def judged(*statuses: Any) -> Report:
    rows = tuple(
        replace(STRATEGIES_ON_GPU[0], status=status, reason="there was no time")
        for status in statuses
    )
    return replace(PARTLY_SAFE, strategies=rows)


def test_asking_for_what_cannot_be_judged_in_time_is_no_success(
    analysis: Analysis, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["analyze", "model.py", "--strategies", "whole", "--budget", "1s"]
    analysis(judged("timed-out", "timed-out"))
    assert main(asked) == 4
    said = capsys.readouterr()
    assert "none of the strategies could be judged within 1 s" in said.err
    assert "PARTLY SAFE" in said.out  # the diagnosis is shown all the same
    assert main(["analyze", "model.py"]) == 0  # they were not asked for
    analysis(judged("timed-out", "failed"))
    assert main(asked) == 0


def test_ctrl_c_shows_what_is_known_and_says_what_is_missing(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis(PARTLY_SAFE)

    def interrupted(*_: object) -> Report:
        raise Interrupted(judged("verified", "timed-out"))

    monkeypatch.setattr(sys.modules["graphdoctor.pipeline"], "analyze_target", interrupted)
    assert main(["analyze", "model.py", "--json", "report.json"]) == 130
    said = capsys.readouterr()
    assert "PARTLY SAFE" in said.out and "GD101" in said.out
    assert said.err.startswith("graphdoctor: interrupted: not tried: whole; ")
    assert parsed(Path("report.json").read_text(), Report, name="").verdict == "partly-safe"


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals here")
def test_a_terminal_shows_the_findings_first_and_a_table_until_the_page_is_complete(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysis(replace(PARTLY_SAFE, strategies=STRATEGIES_ON_GPU[:2]))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "40")
    piped = io.StringIO()
    reading, writing = os.openpty()
    with open(writing, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)

        def shown(stdout: io.TextIOBase) -> str:
            monkeypatch.setattr(sys, "stdout", stdout)
            assert main(["analyze", "--color", "never", "model.py"]) == 0
            terminal.write("\0")  # the kernel passes on in pieces what was written
            terminal.flush()
            arrived = b""
            while not arrived.endswith(b"\0"):
                arrived += os.read(reading, 1 << 16)
            return arrived[:-1].decode().replace("\r\n", "\n")

        progress = shown(piped)
        seen = shown(terminal).replace("\r\x1b[K", "")
    os.close(reading)
    assert "trying the last ..." in progress and "SAFE" not in progress
    first, second, end = re.split(r"\r\x1b\[\d+A\x1b\[J", seen)
    whole, modules = (f"\n  {row.strategy} " for row in STRATEGIES_ON_GPU[:2])
    assert first.index("PARTLY SAFE") < first.index("GD101") < first.index(whole)
    assert modules not in first
    assert whole in second and modules in second and second.endswith("trying the last ...\r")
    beginning = first[first.index("PARTLY SAFE") : first.index("\nSpeedup, ")]
    assert beginning + end == piped.getvalue()


def page(report: Report, **look: Any) -> str:
    return written_as("terminal", report, Look(base=BASE, show_all=True, **look))


def section(text: str) -> list[str]:
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("Ways to run it faster"))
    return lines[first:]


def test_the_table_fits_eighty_columns_and_its_columns_are_aligned() -> None:
    lines = section(page(COMPARED_ON_GPU))
    assert max(map(len, lines)) <= 80
    heading = lines[1]
    assert heading.split("  ")[1:2] == ["Strategy"]
    ends = heading.index("Captured") + len("Captured")
    row = next(line for line in lines if line.startswith("  whole"))
    assert row[:ends].endswith("100%")


def test_every_strategy_has_its_row_with_its_word_and_its_cause() -> None:
    text = "\n".join(section(page(COMPARED_ON_GPU)))
    for row in STRATEGIES_ON_GPU:
        assert f"\n  {row.strategy} " in text
    for words in ("WRONG", "failed", "timed out", "no change", "0.80x slower", "never"):
        assert words in text
    assert "memory ran out" in " ".join(text.split())
    assert "2.1x (1.6x to 2.9x) was predicted" in " ".join(text.split())


def test_nothing_is_said_where_nothing_was_compared() -> None:
    assert "Ways to run it faster" not in page(PARTLY_SAFE)


def test_the_predicted_table_says_predicted_and_shows_no_column_without_figures() -> None:
    rows = tuple(
        replace(row, measurement=None, prepare_s=None, extra_bytes=None, break_even_calls=None)
        for row in STRATEGIES_ON_GPU[:1]
    )
    lines = section(page(replace(COMPARED_ON_GPU, strategies=rows, recommendation=None)))
    assert "predicted" in lines[0]
    assert lines[1].split() == ["Strategy", "Answers", "Speedup,", "predicted", "Captured"]


def test_advice_to_keep_eager_is_not_called_a_thing_to_use() -> None:
    sentence = "Keep eager: no verified strategy is faster."
    kept = page(replace(COMPARED_ON_GPU, recommendation=Recommendation("none", sentence)))
    told = [line.split(maxsplit=1) for line in kept.splitlines() if "Keep eager" in line]
    assert told == [["Advice", sentence]]
    used = page(COMPARED_ON_GPU)
    assert [line.split()[:2] for line in used.splitlines() if "whole:" in line] == [
        ["Use", "whole:"]
    ]


def test_a_plan_is_shown_in_full() -> None:
    plan = "\n".join(f"graph {number}: 12 launches" for number in range(1, 10))
    planned = replace(STRATEGIES_ON_GPU[1], status="planned", plan=plan)
    text = page(replace(COMPARED_ON_GPU, strategies=(planned,)))
    assert "graph 1: 12 launches" in text and "graph 9: 12 launches" in text


def test_a_long_line_of_a_plan_keeps_its_indent() -> None:
    plan = "forward graph 1:\n  eager: " + "a reason that goes on; " * 6
    planned = replace(STRATEGIES_ON_GPU[1], status="planned", plan=plan)
    lines = section(page(replace(COMPARED_ON_GPU, strategies=(planned,), recommendation=None)))
    shown = [line for line in lines if "a reason" in line or "goes on" in line]
    assert len(shown) > 1
    assert all(line.startswith(" " * 6) and line[6] != " " for line in shown)


def test_an_unverified_time_is_shown_without_the_colour_of_a_gain() -> None:
    row = STRATEGIES_ON_GPU[0]
    assert row.measurement is not None
    figure = f"{row.measurement.speedup:.2f}x"

    def line_of(shown: StrategyOutcome) -> str:
        text = page(replace(COMPARED_ON_GPU, strategies=(shown,)), color_system="standard")
        return next(line for line in text.splitlines() if figure in line and "100%" in line)

    assert "\x1b[1;32m" in line_of(row)
    unproved = line_of(replace(row, status="not-verified"))
    assert "unverified" in unproved
    assert "100%" in unproved
    assert "\x1b[1;32m" not in unproved


def test_less_memory_than_eager_is_shown_below_zero_and_told() -> None:
    less = replace(STRATEGIES_ON_GPU[0], extra_bytes=-512_000_000)
    text = " ".join(page(replace(COMPARED_ON_GPU, strategies=(less,))).split())
    assert "-512 MB" in text
    assert "compared with eager, below 0 for less. Pays at" in text
    more = replace(less, extra_bytes=512_000_000)
    text = " ".join(page(replace(COMPARED_ON_GPU, strategies=(more,))).split())
    assert "compared with eager. Pays at" in text
    saved = written_as("json", replace(COMPARED_ON_GPU, strategies=(less,)), Look())
    assert parsed(saved.encode(), Report, name="r.json").strategies[0].extra_bytes == -512_000_000


def test_what_a_strategy_says_cannot_colour_the_page() -> None:
    evil = replace(STRATEGIES_ON_GPU[0], reason="\x1b[31mred", status="failed")
    text = page(replace(COMPARED_ON_GPU, strategies=(evil,)))
    assert "\x1b" not in text


def test_a_saved_report_keeps_rows_and_advice() -> None:
    saved = written_as("json", COMPARED_ON_GPU, Look())
    again = parsed(saved.encode(), Report, name="report.json")
    assert again.strategies == COMPARED_ON_GPU.strategies
    assert again.recommendation == COMPARED_ON_GPU.recommendation
    assert '"strategy"' in saved


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "+999 B"),
        (1_000, "+1 kB"),
        (34_100_000, "+34 MB"),
        (-512_000_000, "-512 MB"),
        (1_240_000_000, "+1.2 GB"),
        (999_700, "+1 MB"),
    ],
)
def test_memory_is_shown_with_its_sign(count: int, text: str) -> None:
    assert more_bytes_text(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1"), (1204, "1,204"), (99_999, "99,999"), (1_240_000, "1.2 M")]
)
def test_counts_stay_short(count: int, text: str) -> None:
    assert many_text(count) == text
