"""Shows what was watched of a program, and writes the line that is printed from time to time."""

from __future__ import annotations

from collections.abc import Mapping

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import HORIZONTAL, Page
from graphdoctor.values.figures import count_text, shortened
from graphdoctor.values.locations import Location, path_text, place_text
from graphdoctor.values.watched import (
    Rate,
    SampledCalls,
    WatchedAllocator,
    WatchedGraphs,
    WatchReport,
)

_MOST_ROWS = 8
_MOST_CHARACTERS = 300
_NO_CUDA = {
    "none": "There is no CUDA device to watch on this machine: the program runs as it is.",
    "not used": "The program did not use CUDA; there was nothing to watch.",
}


def line(now: WatchReport, before: WatchReport | None) -> str:
    """What happened since the report before, in one line."""
    calls = _since(now.calls, before.calls if before is not None else SampledCalls())
    counted = {
        "wait": sum(now.waits.values()) - (sum(before.waits.values()) if before is not None else 0),
        "replay": now.replays - (before.replays if before is not None else 0),
        "capture": now.captures - (before.captures if before is not None else 0),
        "eager call": now.eager_calls - (before.eager_calls if before is not None else 0),
        "recompile": now.recompiles - (before.recompiles if before is not None else 0),
        "skip": now.compiled.skips - (before.compiled.skips if before is not None else 0),
    }
    parts = [_duration(now.wall_s), *_allocations(now, before), *_rates(calls)]
    parts += [f"+{count_text(n, what)}" for what, n in counted.items() if n or what == "replay"]
    if now.device == "not used":
        parts.append("CUDA not used yet")
    return f"graphdoctor watch{_rank(now)} {'  '.join(parts)}\n"


def no_device_line() -> str:
    """What is said before the program runs, on a machine without a GPU."""
    return f"graphdoctor watch: {_NO_CUDA['none']}\n"


def render(report: WatchReport, look: Look) -> str:
    """The page. Text from the program can neither colour nor move anything in it."""
    page = Page(look)
    page.line((HORIZONTAL * look.width, "dim"))
    page.line(
        (f"graphdoctor watch{_rank(report)}", "bold"),
        (f"  {path_text(' '.join(report.command), look.base)}", "dim"),
    )
    page.paragraph(" ".join(_what_happened(report)))
    _write_eager_work(page, report)
    _write_calls(page, report)
    _write_graphs(page, report)
    if report.models:
        page.heading("Models of graphdoctor.capture", "counted")
    for model in report.models[:_MOST_ROWS]:
        eager = sum(model.eager.values())
        page.hanging("  ", f"{model.name}: {count_text(model.replayed, 'replay')}, {eager:,} eager")
        _write_reasons(page, model.eager)
    _write_compiled(page, report)
    for note in report.notes:
        page.labelled("  Note", note, style="yellow")
    return page.render()


def _rank(report: WatchReport) -> str:
    return "" if report.rank is None else f" rank {report.rank}"


def _what_happened(report: WatchReport) -> list[str]:
    time = _duration(report.wall_s)
    said = {
        "running": f"The program has run for {time} and goes on.",
        "terminated": f"The program was terminated (SIGTERM) after {time}.",
        "finished": f"The program ran for {time} to its end, with exit code {report.exit_code}.",
        "raised": f"The program failed after {time}.",
        "interrupted": f"The program was interrupted after {time}.",
        "ended by graphdoctor": f"The program was ended after {time}.",
    }[report.state]
    sentences = [said]
    if report.device in _NO_CUDA:
        return [*sentences, _NO_CUDA[report.device]]
    calls, cost = report.calls, report.cost
    if calls.windows:
        seen = calls.seen_s / report.wall_s
        sentences.append(
            f"It was looked at in {count_text(calls.windows, 'window')}, {seen:.2%} of the"
            f" time, which took at most {cost.share:.2%} of it."
        )
    elif cost.setup_s:
        sentences.append("It was too short for a window of CUPTI.")
    if cost.setup_s:
        sentences.append(f"The profiler's start took {cost.setup_s:.1f} s, once.")
    return sentences


def _write_eager_work(page: Page, report: WatchReport) -> None:
    if report.device in _NO_CUDA:
        return
    page.heading("Eager work", "counted")
    if report.allocator is not None:
        _write_allocations(page, report.allocator, report.wall_s)
    else:
        page.labelled(
            "  Memory", "not known: the program's allocator is not PyTorch's own, which counts"
        )
    listed = ", ".join(f"{name} {count:,}" for name, count in report.waits.items())
    page.labelled("  Waits", listed or "none from calls such as torch.cuda.synchronize()")


def _write_allocations(page: Page, found: WatchedAllocator, wall_s: float) -> None:
    per_s = _number(found.allocations / wall_s) if wall_s else "0"
    made = "made by operators that ran eagerly, and by none of a replay"
    page.labelled(
        "  Memory", f"{count_text(found.allocations, 'allocation')}, {per_s} a second: {made}"
    )
    if found.from_driver:
        asked = f"{count_text(found.from_driver, 'time')} memory was requested from the driver"
        again = (
            f", {found.retries:,} of them again, since it had none left" if found.retries else ""
        )
        page.labelled("  cudaMalloc", f"{asked}{again}: each waits for the GPU")


def _write_calls(page: Page, report: WatchReport) -> None:
    calls = report.calls
    if not calls.windows:
        return
    page.heading("CUDA calls", "a second, extrapolated from the windows")
    page.labelled("  Launches", f"{_rate(calls.launch_rate)} of single kernels")
    page.labelled("  Graphs", f"{_rate(calls.graph_launch_rate)} of whole graphs")
    if calls.operations:
        share = calls.operations_in_graphs / calls.operations
        page.labelled("  In graphs", f"{share:.0%} of the kernels, copies and fills on the GPU")
    page.labelled("  Syncs", f"{_rate(calls.sync_rate)}{_listed(calls.syncs)}")
    page.labelled("  Copies", f"{_rate(calls.copy_rate)}{_listed(calls.copies)}")


def _write_graphs(page: Page, report: WatchReport) -> None:
    if report.device in _NO_CUDA:
        return
    page.heading("CUDA graphs", "counted, by the line that captured them")
    if not report.graphs:
        page.line(("  none was captured", ""))
    for each in report.graphs[:_MOST_ROWS]:
        place = _place(each.location, page.look.base)
        page.hanging("  ", f"{place}: {_graphs(each, report.wall_s)}")
    _write_rest(page, len(report.graphs))


def _graphs(each: WatchedGraphs, wall_s: float) -> str:
    text = (
        f"{count_text(each.replays, 'replay')}, {count_text(each.captures, 'capture')},"
        f" {count_text(each.alive, 'graph')} alive"
    )
    if not each.again:
        return text
    ago = _duration(max(0.0, wall_s - each.last_capture_s))
    return (
        f"{text}; captured {count_text(each.again, 'time')} again after replays, the last time"
        f" {ago} ago: for other shapes, or since its graphs were thrown away"
    )


def _write_compiled(page: Page, report: WatchReport) -> None:
    compiled = report.compiled
    if compiled.recompiled or compiled.graph_breaks or compiled.skips:
        page.heading("torch.compile", "counted by torch")
    for each in compiled.recompiled[:_MOST_ROWS]:
        place = f"{each.location.function} ({_place(each.location, page.look.base)})"
        page.hanging("  ", f"{place} was compiled again {count_text(each.count, 'time')}")
        if each.reason:
            page.hanging(" " * 6, shortened(each.reason, _MOST_CHARACTERS), style="yellow")
    _write_rest(page, len(compiled.recompiled))
    if compiled.skips:
        page.hanging("  ", f"{count_text(compiled.skips, 'compiled part')} without a CUDA graph")
        _write_reasons(page, compiled.skip_reasons)
    if compiled.graph_breaks:
        page.hanging("  ", count_text(sum(compiled.graph_breaks.values()), "graph break"))
        _write_reasons(page, compiled.graph_breaks)


def _write_reasons(page: Page, reasons: Mapping[str, int]) -> None:
    for reason, count in list(reasons.items())[:_MOST_ROWS]:
        page.hanging(f"    {count:>8,}  ", shortened(reason, _MOST_CHARACTERS), style="yellow")
    _write_rest(page, len(reasons))


def _write_rest(page: Page, count: int) -> None:
    if count > _MOST_ROWS:
        page.line((f"    and {count - _MOST_ROWS} more, in the JSON", "dim"))


def _allocations(now: WatchReport, before: WatchReport | None) -> list[str]:
    """How often eager work took memory since the report before."""
    if now.device in _NO_CUDA or now.allocator is None:
        return []
    then = before.allocator if before is not None else None
    taken_s = now.wall_s - (before.wall_s if before is not None else 0.0)
    number = now.allocator.allocations - (then.allocations if then is not None else 0)
    return [f"{_number(number / taken_s)} allocations/s"] if taken_s > 0 else []


def _rates(calls: SampledCalls) -> list[str]:
    """The rates of the windows between two lines; none where no window was due."""
    if not calls.windows:
        return []
    syncs, copies = sum(calls.syncs.values()), sum(calls.copies.values())
    share = (
        f" ({calls.operations_in_graphs / calls.operations:.0%} in graphs)"
        if calls.operations
        else ""
    )
    launches = calls.launches + calls.graph_launches
    return [
        f"{_number(launches / calls.seen_s)} launches/s{share}",
        f"{_number(syncs / calls.seen_s)} syncs/s",
        *([] if calls.lacks_work else [f"{_number(copies / calls.seen_s)} copies/s"]),
    ]


def _since(now: SampledCalls, before: SampledCalls) -> SampledCalls:
    return SampledCalls(
        windows=now.windows - before.windows,
        seen_s=now.seen_s - before.seen_s,
        launches=now.launches - before.launches,
        graph_launches=now.graph_launches - before.graph_launches,
        operations=now.operations - before.operations,
        operations_in_graphs=now.operations_in_graphs - before.operations_in_graphs,
        syncs={name: n - before.syncs.get(name, 0) for name, n in now.syncs.items()},
        copies={name: n - before.copies.get(name, 0) for name, n in now.copies.items()},
    )


def _listed(counts: Mapping[str, int]) -> str:
    """In which proportions the windows saw them."""
    total = sum(counts.values())
    if not total:
        return ""
    return f": {', '.join(f'{name} {n / total:.0%}' for name, n in list(counts.items())[:4])}"


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return "unknown"
    if rate.low is None or rate.high is None:
        return f"{_number(rate.per_s)} (too few windows for an interval)"
    return f"{_number(rate.per_s)} ({_number(rate.low)} to {_number(rate.high)})"


def _number(value: float) -> str:
    """Three significant digits of a rate, which has no more."""
    if value >= 1000:
        scale = 10 ** (len(str(int(value))) - 3)
        return f"{round(value / scale) * scale:,}"
    return f"{value:.3g}"


def _place(location: Location | None, base: str) -> str:
    return place_text(location, base) if location is not None else "an unknown line"


def _duration(seconds: float) -> str:
    """0:00:12, 2 days 3:04:05."""
    days, rest = divmod(int(seconds), 86_400)
    clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{count_text(days, 'day')} {clock}" if days else clock
