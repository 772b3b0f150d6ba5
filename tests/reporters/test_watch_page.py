"""The page and the lines of a watched program say what was counted, what was sampled, and what is unknown."""

from __future__ import annotations

import msgspec

from graphdoctor.reporters import watch_page
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import written
from graphdoctor.values.locations import Location
from graphdoctor.values.watched import (
    Rate,
    Recompiled,
    SampledCalls,
    WatchCost,
    WatchedAllocator,
    WatchedCompile,
    WatchedGraphs,
    WatchedModel,
    WatchReport,
)

CALLS = SampledCalls(
    windows=240,
    seen_s=4.8,
    launches=96_000,
    graph_launches=4_800,
    operations=192_000,
    operations_in_graphs=120_000,
    syncs={"cudaStreamSynchronize": 900, "cudaFree": 60},
    copies={"device to host": 960},
    launch_rate=Rate(20_000.4, 19_500.0, 20_500.9),
    graph_launch_rate=Rate(1000.0, 990.0, 1010.0),
    sync_rate=Rate(200.0, 190.0, 210.0),
    copy_rate=Rate(200.0, 0.0, 450.0),
)
REPORT = WatchReport(
    schema_version=2,
    tool_version="0",
    command=("serve.py", "--port", "80"),
    rank=None,
    state="running",
    exit_code=None,
    wall_s=7384.0,
    device="watched",
    allocator=WatchedAllocator(73_840_000, 12, 1),
    waits={"torch.cuda.synchronize()": 1_500, "Event.synchronize()": 3},
    calls=CALLS,
    graphs=(
        WatchedGraphs(Location("/app/serve.py", 40, "warm_up"), 12, 3, 9, 1_204_000, 7300.0),
        WatchedGraphs(None, 1, 0, 1, 5, 3.0),
    ),
    models=(WatchedModel("Net", 500, {"x has shape (3, 4), captured was (8, 4)": 7}),),
    compiled=WatchedCompile(
        (Recompiled(Location("/app/net.py", 7, "forward"), 4, "size mismatch at index 0"),),
        {"call to print": 2},
        1,
        {"skipping cudagraphs due to mutated inputs": 1},
    ),
    cost=WatchCost(0.8, 30.0, 30.0 / 7384.0),
    notes=("Windows that were put off, since it profiled itself then: 2.",),
)


def look(base: str = "/app") -> Look:
    return Look(width=80, color_system=None, show_all=False, base=base, show_frames=False)


def page(report: WatchReport) -> str:
    return watch_page.render(report, look())


def test_the_page_in_full() -> None:
    text = page(REPORT)
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for said in (
        "The program has run for 2:03:04 and goes on.",
        "in 240 windows, 0.07% of the time, which took at most 0.41% of it.",
        "The profiler's start took 0.8 s, once.",
        "Memory 73,840,000 allocations, 10,000 a second: made by operators that ran eagerly",
        "cudaMalloc 12 times memory was requested from the driver, 1 of them again",
        "Waits torch.cuda.synchronize() 1,500, Event.synchronize() 3",
        "extrapolated from the windows",
        "Launches 20,000 (19,500 to 20,500) of single kernels",
        "Graphs 1,000 (990 to 1,010) of whole graphs",
        "In graphs 62% of the kernels, copies and fills on the GPU",
        "Syncs 200 (190 to 210): cudaStreamSynchronize 94%, cudaFree 6%",
        "Copies 200 (0 to 450): device to host 100%",
        "serve.py:40: 1,204,000 replays, 12 captures, 9 graphs alive; captured 3 times again"
        " after replays, the last time 0:01:24 ago",
        "an unknown line: 5 replays, 1 capture, 1 graph alive",
        "Net: 500 replays, 7 eager",
        "7 x has shape (3, 4), captured was (8, 4)",
        "forward (net.py:7) was compiled again 4 times size mismatch at index 0",
        "1 compiled part without a CUDA graph 1 skipping cudagraphs due to mutated inputs",
        "2 graph breaks 2 call to print",
        "Note Windows that were put off, since it profiled itself then: 2.",
    ):
        assert said in flat, said


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    short = msgspec.structs.replace(
        REPORT, calls=SampledCalls(), cost=WatchCost(0.8, 0.0, 0.0), graphs=()
    )
    text = " ".join(page(short).split())
    assert "too short for a window of CUPTI" in text
    assert "CUDA calls" not in text
    other = msgspec.structs.replace(REPORT, allocator=None)
    assert "Memory not known" in " ".join(page(other).split())
    assert "allocations" not in page(other) + watch_page.line(other, REPORT)
    few = msgspec.structs.replace(
        REPORT, calls=msgspec.structs.replace(CALLS, launch_rate=Rate(20.0))
    )
    assert "20 (too few windows for an interval)" in page(few)


def test_without_a_device_there_is_one_sentence_and_no_figures() -> None:
    none = msgspec.structs.replace(
        REPORT,
        device="none",
        calls=SampledCalls(),
        graphs=(),
        models=(),
        compiled=WatchedCompile(),
        cost=WatchCost(0.0, 0.0, 0.0),
        notes=(),
    )
    text = " ".join(page(none).split())
    assert text.endswith(
        "There is no CUDA device to watch on this machine: the program runs as it is."
    )
    assert "Eager work" not in page(none)
    unused = page(msgspec.structs.replace(none, device="not used"))
    assert "did not use CUDA" in unused


def test_a_line_says_what_happened_since_the_one_before() -> None:
    first = watch_page.line(REPORT, None)
    assert first == (
        "graphdoctor watch 2:03:04  10,000 allocations/s  21,000 launches/s (62% in graphs)  200 syncs/s  200 copies/s"
        "  +1,503 waits  +1,204,005 replays  +13 captures  +7 eager calls  +4 recompiles  +1 skip\n"
    )
    assert watch_page.line(REPORT, REPORT) == "graphdoctor watch 2:03:04  +0 replays\n"
    ranked = msgspec.structs.replace(REPORT, rank=3)
    assert watch_page.line(ranked, REPORT) == "graphdoctor watch rank 3 2:03:04  +0 replays\n"
    later = msgspec.structs.replace(
        REPORT,
        wall_s=90_061.0,
        calls=msgspec.structs.replace(
            CALLS, windows=241, seen_s=4.82, launches=96_100, operations=192_100,
            syncs={"cudaStreamSynchronize": 901, "cudaFree": 60},
        ),
    )  # fmt: skip
    assert watch_page.line(later, REPORT) == (
        "graphdoctor watch 1 day 1:01:01  0 allocations/s  5,000 launches/s (0% in graphs)  50 syncs/s  0 copies/s"
        "  +0 replays\n"
    )


def test_text_of_the_program_cannot_move_anything() -> None:
    hostile = msgspec.structs.replace(
        REPORT,
        command=("\x1b[2Jserve.py",),
        models=(WatchedModel("Net\n\x1b]0;x", 1, {"\x1b[31mred\r": 1, "\ud800": 2}),),
    )
    text = page(hostile)
    assert "\x1b" not in text and "\r" not in text
    assert "\\ud800" in written(hostile)
