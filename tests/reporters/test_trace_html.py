"""Traces as one HTML file: the same from a saved report, ranks on one clock, nothing in it obeyed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from graphdoctor.cli import main
from graphdoctor.reporters import trace_html
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import written
from graphdoctor.reporters.saved import page_of
from graphdoctor.trace import read_trace
from graphdoctor.trace.explain.before_after import compare_traces
from graphdoctor.trace.explain.trace_report import explain_trace
from graphdoctor.values.trace import (
    TRACE_SCHEMA_VERSION,
    FolderReport,
    RankComparison,
    RankTime,
    TraceReport,
)
from tests.support.checking import HOSTILE
from tests.support.parsed import Parsed
from tests.support.trace_stories import REAL

change = msgspec.structs.replace


@pytest.fixture(scope="module")
def real() -> TraceReport:
    return explain_trace(read_trace(REAL), REAL)


def folder_of(*workers: TraceReport, offsets_us: tuple[float, ...] = ()) -> FolderReport:
    ranks = tuple(
        RankTime(worker.worker, offset, 1.0, 2.0, 3.0, 4.0)
        for worker, offset in zip(workers, offsets_us, strict=False)
    )
    return FolderReport(
        schema_version=TRACE_SCHEMA_VERSION,
        tool_version="0.1.0",
        folder="/runs",
        workers=workers,
        differences=(),
        ranks=RankComparison(ranks=ranks, collectives=3) if ranks else None,
    )


def page(report: trace_html.AnyTrace) -> str:
    return trace_html.render(report, Look())


def test_saved_report_gives_the_same_page(real: TraceReport) -> None:
    for report in (real, folder_of(real, real), compare_traces(real, real)):
        saved = written(report).encode()
        assert page_of([("t.json", saved)], Look()) == page(report)


def test_gaps_have_the_color_of_their_cause(real: TraceReport) -> None:
    data = json.loads(Parsed(page(real)).raw["script"][0])
    assert real.drawn is not None
    idle = next(row for row in data["groups"][0]["rows"] if row["title"] == "Idle")
    by_class: dict[str, int] = {}
    for kind, length in zip(idle["kind"], idle["len"], strict=True):
        name = data["kinds"][kind]["name"]
        by_class[name] = by_class.get(name, 0) + length
    assert by_class["idle: the CPU had not reached the launch"] == real.host_ns
    assert by_class["idle: the launch was on its way"] == real.launch_path_ns
    assert by_class["idle: the CPU waited for the GPU"] == real.sync_wait_ns


def test_ranks_stand_above_each_other_on_one_clock(real: TraceReport) -> None:
    assert real.drawn is not None
    later = change(real, drawn=change(real.drawn, begin_ns=real.drawn.begin_ns + 7_000))
    shown = Parsed(page(folder_of(real, later, offsets_us=(0.0, 2.0))))
    first, second = json.loads(shown.raw["script"][0])["groups"]
    assert second["rows"][0]["at"][0] - first["rows"][0]["at"][0] == 5_000
    apart = json.loads(Parsed(page(folder_of(real, later))).raw["script"][0])["groups"]
    assert apart[0]["rows"][0]["at"] == apart[1]["rows"][0]["at"]  # no clock is common


def test_names_of_a_trace_are_shown_and_never_obeyed(real: TraceReport) -> None:
    assert real.drawn is not None
    names = tuple(HOSTILE for _ in real.drawn.names)
    hostile = change(real, reason=HOSTILE, drawn=change(real.drawn, names=names))
    plain, parsed = Parsed(page(real)), Parsed(page(hostile))
    assert [tag for tag, _ in parsed.elements] == [tag for tag, _ in plain.elements]
    assert "<script>alert(1)</script>" in parsed.text
    assert all(target.startswith("#") for target in parsed.all_of("href"))
    assert {target[1:] for target in parsed.all_of("href")} <= set(parsed.all_of("id"))


def test_command_writes_the_page_beside_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, direct, viewed = (str(tmp_path / name) for name in ("t.json", "t.html", "v.html"))
    assert main(["trace", str(REAL), "--json", saved, "--report", f"html={direct}"]) == 0
    assert main(["view", saved, "-o", viewed]) == 0
    assert Path(direct).read_bytes() == Path(viewed).read_bytes()
    assert main(["trace", str(REAL), "--json", direct, "--report", f"html={direct}"]) == 2
    assert "name the same file" in capsys.readouterr().err
    assert main(["trace", str(REAL), "--report", "htm=x"]) == 2
    assert "did you mean 'html'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            b'{"schema_version": 1, "step_basis": "annotations", "tool_version": "1"}',
            "has trace schema version 1",
        ),
        (
            b'{"schema_version": 2, "workers": 3, "tool_version": "1"}',
            "is not a graphdoctor trace",
        ),
    ],
)
def test_what_is_no_report_is_a_sentence(
    content: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert main(["view", str(tmp_path / "x.json"), "-o", "-"]) == 2
    assert sentence in capsys.readouterr().err
