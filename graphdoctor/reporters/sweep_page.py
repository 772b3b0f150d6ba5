"""Shows a sweep over batch sizes: where the gain ends, then every size."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page
from graphdoctor.values.figures import Range, count_text, share_range, time_range, time_text
from graphdoctor.values.locations import path_text
from graphdoctor.values.sweep import SMALLEST_GAIN, EndKind, LengthPlan, Sweep, SweepRow

_TITLES: dict[EndKind, tuple[str, str]] = {
    "ends": ("THE GAIN ENDS", "bold yellow"),
    "never-there": ("NO GAIN", "bold yellow"),
    "does-not-end": ("THE GAIN DOES NOT END", "bold green"),
    "cannot-tell": ("CANNOT TELL", "bold blue"),
    "no-graph": ("NO GRAPH", "bold red"),
    "unknown": ("UNKNOWN", "bold blue"),
}
_NOTHING = "-"
_LEAST_BAR = 10


def render(sweep: Sweep, look: Look) -> str:
    """The page. Text from the model can neither colour nor move anything in it."""
    page = Page(look)
    title, style = _TITLES[sweep.end.kind]
    at = f" AT BATCH {sweep.end.batch}" if sweep.end.kind == "ends" else ""
    page.line((title + at, style), (f"  {sweep.target.name}, {sweep.target.mode}", "dim"))
    page.paragraph(sweep.end.sentence, style="bold")
    _write_sizes(page, sweep)
    _write_bars(page, sweep.rows)
    if sweep.lengths is not None:
        write_lengths(page, sweep.lengths)
    _write_ranges(page, sweep)
    _write_reasons(page, sweep)
    _write_inputs(page, sweep)
    _write_remarks(page, sweep)
    return page.render()


def _write_sizes(page: Page, sweep: Sweep) -> None:
    page.heading("Batch sizes", _basis(sweep))
    page.line((_columns("batch", "eager", "graph", "speedup", "bound", "busy", "samples/s"), "dim"))
    is_mixed = any(row.status == "measured" for row in sweep.rows)
    for row in sweep.rows:
        page.line((_row_text(row, is_mixed), _style(row)))
    page.blank()
    page.paragraph(
        "bound: share of the eager step that waits for launches; busy: share in which the device"
        " works; samples/s: eager, as a graph",
        indent=2,
        style="dim",
    )


def _basis(sweep: Sweep) -> str:
    kinds = {row.status for row in sweep.rows}
    if "measured" not in kinds:
        return f"predicted for {sweep.gpu}" + (f" with {sweep.host}" if sweep.host else "")
    return f"measured on {sweep.gpu}" + ("; ~ predicted" if "predicted" in kinds else "")


def _columns(batch: str, eager: str, graph: str, speedup: str, *shares: str) -> str:
    bound, busy, samples = shares
    return f"  {batch:>7} {eager:>8} {graph:>8}  {speedup:<23}{bound:>6} {busy:>5}  {samples}"


def _row_text(row: SweepRow, is_mixed: bool) -> str:
    if row.eager_us is None:
        words = {"failed": "failed", "out-of-memory": "out of memory"}.get(row.status, "not run")
        return f"  {row.batch:>7}  {words}"
    speedup = "no graph"
    if (ratio := row.speedup) is not None:
        mark = "~" if is_mixed and row.status == "predicted" else ""
        speedup = f"{mark}{ratio.mid:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"
    return _columns(
        str(row.batch),
        time_text(row.eager_us.mid),
        time_text(row.graph_us.mid) if row.graph_us is not None else _NOTHING,
        speedup,
        _percent(row.launch_bound_share),
        _percent(row.device_busy_share),
        f"{_rate(row.eager_samples_per_s)}, {_rate(row.graph_samples_per_s)}",
    )


def _style(row: SweepRow) -> str:
    if row.speedup is None:
        return "red" if row.status in ("failed", "out-of-memory") else "yellow"
    return "green" if row.speedup.low >= SMALLEST_GAIN else ""


def _percent(share: Range | None) -> str:
    return f"{share.mid:.0%}" if share is not None else _NOTHING


def _rate(per_second: Range | None) -> str:
    """1.2k, 34k, 5.6M: two or three digits are what such a figure is good for."""
    if per_second is None:
        return _NOTHING
    value = per_second.mid
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor * 0.9995:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def _write_bars(page: Page, rows: Sequence[SweepRow]) -> None:
    """Speed-ups side by side: `#` as far as is sure, `+` as far as is possible."""
    judged = [(row.batch, row.speedup) for row in rows if row.speedup is not None]
    if len(judged) < 2:
        return
    room = max(_LEAST_BAR, page.look.width - 23)
    most = max(speedup.high for _, speedup in judged)
    page.heading("Speedup", f"# sure, + possible; | is {SMALLEST_GAIN:g}x")

    def at(value: float) -> int:
        return min(room, round(value / max(most, SMALLEST_GAIN) * room))

    for batch, speedup in judged:
        low, high = at(speedup.low), at(speedup.high)
        bar = ("#" * low + "+" * (high - low)).ljust(room)
        edge = max(1, at(SMALLEST_GAIN))
        page.line((f"  {batch:>7}  ", "dim"), (f"{bar[: edge - 1]}|{bar[edge:]}", "green"),
                  (f"  {speedup.mid:.2f}x", ""))  # fmt: skip


def _write_ranges(page: Page, sweep: Sweep) -> None:
    """The bounds of every figure, where everything was asked for."""
    if not page.look.show_all:
        return
    for row in sweep.rows:
        if row.eager_us is None:
            continue
        page.heading(f"Batch {row.batch}", row.status)
        page.labelled("  Eager", time_range(row.eager_us))
        if row.graph_us is not None:
            page.labelled("  As a graph", f"{time_range(row.graph_us)}, {row.scope}")
        if row.launch_bound_share is not None:
            page.labelled("  Launch-bound", share_range(row.launch_bound_share))
        if row.device_busy_share is not None:
            page.labelled("  Device busy", share_range(row.device_busy_share))
        if row.measurement is not None and row.measurement.clock_note:
            page.labelled("  Clocks", row.measurement.clock_note)


def _write_reasons(page: Page, sweep: Sweep) -> None:
    """Why sizes have no figures, and verdicts: one line where they are all the same."""
    verdicts = {row.verdict for row in sweep.rows if row.verdict is not None}
    silent = [row for row in sweep.rows if row.reason]
    if not (verdicts or silent):
        return
    page.heading("Verdicts")
    if len(verdicts) == 1:
        page.labelled("  Every size", f"{next(iter(verdicts))}{_of_regions(sweep.rows)}")
    elif verdicts:
        for row in sweep.rows:
            if row.verdict is not None:
                page.labelled(f"  Batch {row.batch}", f"{row.verdict}{_of_regions([row])}")
    for reason, batches in _by_text((row.reason, row) for row in silent).items():
        page.labelled(f"  Batch {batches}", reason, style="yellow")


def _of_regions(rows: Sequence[SweepRow]) -> str:
    is_part = any(row.scope == "regions" for row in rows)
    return ": the gain is that of the regions that can be captured" if is_part else ""


def _by_text(said: Iterable[tuple[str, SweepRow]]) -> dict[str, str]:
    """Each text once, with the batch sizes that it is said of."""
    batches: dict[str, list[str]] = {}
    for text, row in said:
        batches.setdefault(text, []).append(str(row.batch))
    return {text: ", ".join(sizes) for text, sizes in batches.items()}


def _write_inputs(page: Page, sweep: Sweep) -> None:
    page.heading("How the batch was changed")
    if sweep.sized_by:
        page.labelled("  Called", sweep.sized_by)
    for found in sweep.inputs:
        text = "x".join(map(str, found.shape)) or "a scalar"
        if found.changes:
            changed = "x".join(["N", *map(str, found.shape[1:])])
            page.labelled("  Changed", f"{found.path}: {text} to {changed}")
        else:
            page.labelled("  Kept", f"{found.path}: {text}")


def _write_remarks(page: Page, sweep: Sweep) -> None:
    page.heading("Remarks")
    for note in sweep.notes:
        page.labelled("  Note", note, style="yellow")
    for note, batches in _by_text((note, row) for row in sweep.rows for note in row.notes).items():
        page.labelled("  Not checked", f"batch {batches}: {note}", style="yellow")
    for note in sweep.target.notes:
        page.labelled("  Note", note)
    machine = sweep.machine
    page.labelled("  Target", path_text(sweep.target.file, page.look.base))
    page.labelled(
        "  Machine", f"{machine.device_name}, torch {machine.torch}, Python {machine.python}"
    )


_SHOWN = 16  # sizes, one a line


def write_lengths(page: Page, plan: LengthPlan) -> None:
    """The sizes, what they bring beside usual ones, and how to say so to vLLM, Inductor and torch."""
    _write_chosen(page, plan)
    page.heading("Compared with usual sizes")
    page.line((f"  {'':<16}{'graphs':>7} {'a call':>9} {'padding':>8} {'eager':>7}", "dim"))
    for one in (plan.chosen, *plan.beside):
        page.line(
            (
                f"  {one.name:<16}{len(one.sizes):>7} {time_text(one.mean_us):>9} {one.padding:>8.1%}"
                f" {one.eager_calls / plan.calls:>7.1%}",
                "",
            )
        )
    page.heading("Settings")
    text = f"sizes = [{', '.join(map(str, plan.chosen.sizes))}]"
    for line in textwrap.wrap(text, width=76, subsequent_indent="    ", break_long_words=False):
        page.line((f"  {line}", ""))
    for name, lines in _SETTINGS:
        page.blank()
        page.line((f"  # {name}", "dim"))
        for line in lines:
            page.line((f"  {line}", ""))


def _write_chosen(page: Page, plan: LengthPlan) -> None:
    page.heading("Sizes to capture", f"{count_text(plan.calls, 'call')} of the log")
    chosen = plan.chosen
    page.line((f"  {'size':>7} {'calls':>9}  {'share':>6}", "dim"))
    for size, calls in list(zip(chosen.sizes, chosen.calls, strict=True))[:_SHOWN]:
        page.line((f"  {size:>7} {calls:>9}  {calls / plan.calls:>6.1%}", ""))
    if len(chosen.sizes) > _SHOWN:
        page.line((f"  and {len(chosen.sizes) - _SHOWN} more", "dim"))
    if chosen.eager_calls:
        page.line(
            (f"  {'eager':>7} {chosen.eager_calls:>9}  {chosen.eager_calls / plan.calls:>6.1%}", "")
        )
    page.blank()
    basis = "measured" if plan.is_measured else "predicted"
    page.paragraph(
        f"A call takes the smallest size that it fits into: {time_text(chosen.mean_us)} on average"
        f" ({basis}), {time_text(plan.eager_us)} without graphs, {time_text(plan.exact_us)} with one for"
        f" each of the log's sizes ({plan.shortest} to {plan.longest}). To warm up and capture them takes"
        f" about {time_text(plan.capture_us)}. Memory is not weighed: with one pool it is about that of"
        " the largest. Not proved here: that rows which are padding change no other row's answer.",
        indent=2,
    )


_SETTINGS = (
    (
        "graphdoctor; pads where that is proved, else says why; dim=1 for lengths",
        ("fast = graphdoctor.capture(model, *inputs, sizes=sizes)",),
    ),
    (
        "vLLM, where a size is a number of tokens",
        ('LLM(model, compilation_config={"cudagraph_capture_sizes": sizes})',),
    ),
    (
        "Inductor; pad the inputs to the next of the sizes",
        (
            "torch._inductor.config.triton.cudagraph_capture_sizes = tuple(sizes)",
            'model = torch.compile(model, mode="reduce-overhead", dynamic=True)',
        ),
    ),
    (
        "torch; capture_at(size) is your capture with inputs of this size",
        (
            "graphs = {size: capture_at(size) for size in reversed(sizes)}  # in one pool",
            "size = sizes[bisect.bisect_left(sizes, len(batch))]  # longer ones: eager",
        ),
    ),
)
