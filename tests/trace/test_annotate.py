"""Drawing into a copy of a trace: what is added, what stays as it was, and that torch accepts it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphdoctor.cli import main
from graphdoctor.trace import read_trace
from graphdoctor.trace.annotate import PROCESS, Anchor, Note, anchor_in, annotate, annotated_events
from graphdoctor.trace.explain.trace_report import explain_trace
from graphdoctor.trace.read import blocks
from graphdoctor.trace.read.names import kept_trace, without_copies
from graphdoctor.values.errors import UsageError
from tests.support.traces import launch_bound

REAL = Path(__file__).parents[1] / "real/h100_bert_small_cut.json.gz"
NASTY = 'a "b" \\ \x00\x1b[31m\n\ud800 <script>\u2028'
NOTE = Note(
    track="GD101 host-read",
    name="GD101 host-read",
    start_ns=4_317_453_815_758_123,
    end_ns=4_317_453_815_759_124,
    details=(("line", "model.py:3"),),
    anchors=(Anchor(0, 4_317_453_815_758_124), Anchor(0, 4_317_453_815_758_125)),
)


def drawn(path: Path) -> list[dict[str, Any]]:
    content = json.loads(gzip.decompress(path.read_bytes()))
    events = content if isinstance(content, list) else content["traceEvents"]
    return [event for event in events if isinstance(event, dict)]


def ours(path: Path) -> list[dict[str, Any]]:
    return [
        event for event in drawn(path) if event.get("cat") == PROCESS or event["pid"] == PROCESS
    ]


def test_a_note_is_a_span_on_a_named_track_with_instants_and_arrows(tmp_path: Path) -> None:
    source = launch_bound(2).write(tmp_path / "raw.json")
    annotate(source, tmp_path / "out.json.gz", [NOTE], read_trace(source).threads)
    found = ours(tmp_path / "out.json.gz")
    names = {event["name"]: event["args"] for event in found if event["ph"] == "M"}
    assert names["process_name"] == {"name": PROCESS}
    assert names["thread_name"] == {"name": "GD101 host-read"}
    (span,) = (event for event in found if event["ph"] == "X")
    assert span["args"] == {"line": "model.py:3"}
    starts = [event for event in found if event["ph"] == "s"]
    ends = [event for event in found if event["ph"] == "f"]
    assert [event["id"] for event in starts] == [event["id"] for event in ends]
    assert len({event["id"] for event in starts}) == 2
    assert all(isinstance(event["id"], int) for event in starts), "Perfetto drops ids of text"
    assert {(event["pid"], event["tid"]) for event in starts} == {(PROCESS, span["tid"])}
    assert {(event["pid"], event["tid"], event["bp"]) for event in ends} == {(4000, 4001, "e")}
    instants = [event for event in found if event["ph"] == "i"]
    assert {(event["pid"], event["tid"], event["s"]) for event in instants} == {(4000, 4001, "t")}


def test_times_are_written_to_the_nanosecond(tmp_path: Path) -> None:
    source = launch_bound(2).write(tmp_path / "raw.json")
    annotate(source, tmp_path / "out.json.gz", [NOTE], read_trace(source).threads)
    text = gzip.decompress((tmp_path / "out.json.gz").read_bytes()).decode()
    assert '"ts": 4317453815758.123, "dur": 1.001' in text


@pytest.mark.parametrize("block_bytes", [64, 1000, 1 << 20])
def test_the_trace_s_own_events_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    before = json.loads(gzip.decompress(REAL.read_bytes()))
    annotate(REAL, tmp_path / "out.json.gz", [NOTE], read_trace(REAL).threads)
    after = json.loads(gzip.decompress((tmp_path / "out.json.gz").read_bytes()))
    kept = [event for event in after["traceEvents"] if event.get("cat") != PROCESS]
    assert [event for event in kept if event["pid"] != PROCESS] == before["traceEvents"]
    assert {**after, "traceEvents": []} == {**before, "traceEvents": []}


@pytest.mark.parametrize("content", ["[]", "[ ]", '{"traceEvents": []}', '{"traceEvents":[\n]}'])
def test_a_trace_without_events_stays_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "raw.json").write_text(content)
    annotate(tmp_path / "raw.json", tmp_path / "out.json.gz", [NOTE], ["1/2"])
    assert len([event for event in drawn(tmp_path / "out.json.gz") if event["ph"] == "i"]) == 2
    annotate(tmp_path / "raw.json", tmp_path / "none.json.gz", [], [])
    assert drawn(tmp_path / "none.json.gz") == []


def test_a_bare_list_is_annotated_too(tmp_path: Path) -> None:
    events = launch_bound(2).events
    (tmp_path / "raw.json").write_text(json.dumps(events))
    annotate(tmp_path / "raw.json", tmp_path / "out.json.gz", [NOTE], ["4000/4001"])
    assert drawn(tmp_path / "out.json.gz")[-len(events) :] == events


def test_text_of_a_model_is_made_visible(tmp_path: Path) -> None:
    source = launch_bound(2).write(tmp_path / "raw.json")
    note = Note(NASTY, NASTY, 0, 1, ((NASTY[:5], NASTY),), (Anchor(0, 0),))
    annotate(source, tmp_path / "out.json.gz", [note], read_trace(source).threads)
    for event in ours(tmp_path / "out.json.gz"):
        for text in _texts(event["args"] if "args" in event else event["name"]):
            assert text.isprintable(), text
    assert len(read_trace(tmp_path / "out.json.gz").operators) == 2


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def test_torch_s_own_validator_accepts_it(tmp_path: Path) -> None:
    validator = pytest.importorskip("torch.profiler._trace_validator", exc_type=ImportError)
    annotate(REAL, tmp_path / "out.json.gz", [NOTE], read_trace(REAL).threads)
    assert validator.validate_trace(str(tmp_path / "out.json.gz")) == (True, [])


def test_what_cannot_be_annotated_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    whole = REAL.read_bytes()
    (tmp_path / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.json").write_text("hello")
    for name, words in (("cut.json.gz", "cut short"), ("text.json", "not a torch.profiler trace")):
        with pytest.raises(UsageError, match=words):
            annotate(tmp_path / name, folder / "out.json.gz", [NOTE], ["1/2"])
    with pytest.raises(UsageError, match="cannot write"):
        annotate(REAL, tmp_path / "nowhere/out.json.gz", [NOTE], ["1/2"])
    assert list(folder.iterdir()) == []


def test_only_one_of_the_three_files_is_a_run_of_the_plugin(tmp_path: Path) -> None:
    from torch_tb_profiler.consts import WORKER_PATTERN

    kept = kept_trace(tmp_path, "a.host.name_12", 345)
    matched = WORKER_PATTERN.match(kept.tensorboard.name)
    assert matched is not None
    assert matched.groups() == ("a_host_name_12", ".345")
    assert WORKER_PATTERN.match(kept.untouched.name) is None
    assert WORKER_PATTERN.match(kept.annotated.name) is None
    assert not kept.untouched.name.startswith("events")


def test_copies_of_one_run_are_read_once(tmp_path: Path) -> None:
    kept = kept_trace(tmp_path, "worker", 1)
    alone = kept_trace(tmp_path / "moved", "worker", 1).untouched
    paths = [kept.annotated, kept.tensorboard, kept.untouched, alone]
    assert without_copies(paths) == [kept.tensorboard, alone]


def test_the_gaps_of_a_trace_are_drawn_with_their_causes(tmp_path: Path) -> None:
    assert main(["trace", str(REAL), "--annotate", str(tmp_path / "out.json.gz")]) == 0
    events = drawn(tmp_path / "out.json.gz")
    spans = [event for event in events if event.get("cat") == PROCESS and event["ph"] == "X"]
    report = explain_trace(read_trace(REAL), REAL)
    total_us = sum(span["dur"] for span in spans)
    assert total_us == pytest.approx(report.idle_ns / 1e3, abs=0.001)
    in_us = lambda text: float(text.removesuffix(" us"))  # noqa: E731
    for span in spans:
        parts = [in_us(text) for text in span["args"].values() if text.endswith(" us")]
        assert sum(parts) == pytest.approx(span["dur"], abs=0.001)
    calls = [event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    instants = [event for event in events if event["ph"] == "i"]
    assert instants
    for instant in instants:
        assert any(
            call["tid"] == instant["tid"] and call["ts"] < instant["ts"] < call["ts"] + call["dur"]
            for call in calls
        )
    arrows: dict[int, dict[str, float]] = {}
    for event in events:
        if event.get("cat") == PROCESS and event["ph"] in "sf":
            arrows.setdefault(event["id"], {})[event["ph"]] = event["ts"]
    assert len(arrows) == len(instants)
    assert all(arrow["s"] <= arrow["f"] for arrow in arrows.values())


def test_a_folder_cannot_be_annotated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(REAL.parent), "--annotate", str(tmp_path / "out.json.gz")]) == 2
    assert "is for one trace" in capsys.readouterr().err


@pytest.mark.parametrize("is_first", [True, False])
def test_environment_variables_beside_the_events_are_in_no_output(
    is_first: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some writers keep the environment in the file; whoever shares a page or a copy does not share that."""
    plain = launch_bound(3).document()
    about = {"metadata": {"system": {"env": {"HF_TOKEN": "hf_secret"}, "os": "linux"}}}
    document = {**about, **plain} if is_first else {**plain, **about}
    source, copy = tmp_path / "raw.json", tmp_path / "copy.json.gz"
    source.write_text(json.dumps(document))
    report = tmp_path / "report.json"
    assert (
        main(["trace", str(source), "--all", "--annotate", str(copy), "--json", str(report)]) == 0
    )
    written = gzip.decompress(copy.read_bytes()).decode()
    for text in (capsys.readouterr().out, report.read_text(), written):
        assert "hf_secret" not in text
    assert json.loads(written)["metadata"]["system"]["os"] == "linux"
    assert [event for event in drawn(copy) if event.get("pid") != PROCESS][-1] == plain[
        "traceEvents"
    ][-1]


def test_a_track_lies_above_the_trace_s_own_in_the_order_of_first_use() -> None:
    notes = [Note(track, "n", 0, 1) for track in ("b", "a", "b")]
    events = [json.loads(text) for text in annotated_events(notes, [])]
    named = [(one["tid"], one["name"], one["args"]) for one in events if one["ph"] == "M"]
    assert named == [
        (0, "process_name", {"name": PROCESS}),
        (0, "process_sort_index", {"sort_index": -10}),
        (0, "thread_name", {"name": "b"}),
        (0, "thread_sort_index", {"sort_index": 0}),
        (1, "thread_name", {"name": "a"}),
        (1, "thread_sort_index", {"sort_index": 1}),
    ]
    assert [one["tid"] for one in events if one["ph"] == "X"] == [0, 1, 0]


@pytest.mark.parametrize(
    ("time_ns", "written"),
    [(0, "0.000"), (7, "0.007"), (1_999, "1.999"), (-1, "-0.001"), (-2_050, "-2.050")],
)
def test_a_time_is_a_decimal_of_microseconds_also_before_zero(time_ns: int, written: str) -> None:
    *_, span = annotated_events([Note("t", "n", time_ns, time_ns)], [])
    assert span.endswith(
        f'"ts": {written}, "dur": 0.001}}'
    )  # a span of no length would not be seen


@pytest.mark.parametrize(("at_ns", "from_note"), [(499, False), (500, True), (501, True)])
def test_an_arrow_goes_from_what_is_earlier_and_at_one_moment_from_the_note(
    at_ns: int, from_note: bool
) -> None:
    note = Note("t", "n", 500, 900, anchors=(Anchor(1, at_ns), Anchor(0, at_ns)))
    events = [json.loads(text) for text in annotated_events([note], ["1/2", "host/main"])]
    arrows = [one for one in events if one["ph"] in "sf"]
    there = [("host", "main"), (1, 2)]
    ends = [(one["ph"], one["pid"], one["tid"]) for one in arrows]
    if from_note:
        assert ends == [(x, *y) for z in there for x, y in (("s", (PROCESS, 0)), ("f", z))]
    else:
        assert ends == [(x, *y) for z in there for x, y in (("s", z), ("f", (PROCESS, 0)))]
    assert [one["id"] - (1 << 40) for one in arrows] == [1, 1, 2, 2]


def test_a_text_of_a_note_is_cut_at_two_thousand_characters() -> None:
    *_, span = annotated_events([Note("t", "n" * 2001, 0, 1, (("k", "v" * 2000),))], [])
    assert (len(json.loads(span)["name"]), len(json.loads(span)["args"]["k"])) == (2000, 2000)


def test_the_copy_may_be_read_by_all(tmp_path: Path) -> None:
    source = launch_bound(1).write(tmp_path / "raw.json")
    annotate(source, tmp_path / "out.json.gz", [], [])
    assert (tmp_path / "out.json.gz").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "at_ns"),
    [(100, 200, 110), (100, 120, 110), (100, 118, 109), (100, 101, 100), (100, 100, 100)],
)
def test_an_anchor_is_ten_ns_inside_its_event_or_in_its_middle(
    start_ns: int, end_ns: int, at_ns: int
) -> None:
    assert anchor_in(3, start_ns, end_ns) == Anchor(3, at_ns)
