"""Where the device's own time went -> tables of a trace's page: kernels, code, messages, copies, memory, graphs."""

from __future__ import annotations

from collections.abc import Sequence

from graphdoctor.reporters.page import Page
from graphdoctor.reporters.trace_rows import at, kernel_text, shown
from graphdoctor.values.figures import bytes_text, count_text, more_bytes_text, shortened, time_text
from graphdoctor.values.trace_work import (
    CollectiveCost,
    Communication,
    DeviceWork,
    GraphUse,
    LineWork,
    MemoryUse,
)

_RANKS_IN_FULL = 8


def write_work(page: Page, work: DeviceWork) -> None:
    """The device's own time, from families down to lines; communication, copies and memory."""
    _write_kernels(page, work)
    for title, lines in (
        ("launching function", work.lines),
        ("module", work.modules),
        ("annotation", work.annotations),
    ):
        _write_places(page, title, lines)
    if work.communication is not None:
        _write_communication(page, work.communication)
    if work.copies:
        page.heading("Copies", "a step")
        for copy in shown(page, work.copies):
            memory = f" ({copy.host_memory})" if copy.host_memory else ""
            page.labelled(
                f"  {copy.copies:,.3g}x",
                f"{copy.direction}{memory}: {bytes_text(round(copy.nbytes))}, {time_text(copy.device_us)}",
            )
    if work.memory is not None:
        _write_memory(page, work.memory)


def _write_kernels(page: Page, work: DeviceWork) -> None:
    if work.families:
        page.heading("Device time by family of kernels", "a step")
        for family in shown(page, work.families):
            what = f"{time_text(family.device_us)}  {family.runs:,.4g}x {family.family}"
            page.labelled(f"  {family.share:.1%}", what)
    if work.kernels:
        page.heading("Device time by kernel", "a step")
        for kernel in shown(page, work.kernels):
            operator = f" from {kernel.operator}" if kernel.operator else ""
            page.labelled(f"  {kernel.share:.1%}", f"{time_text(kernel.device_us)}  {kernel.runs:,.4g}x"
                          f" {kernel_text(kernel.name)}{operator}")  # fmt: skip


def _write_places(page: Page, title: str, lines: Sequence[LineWork]) -> None:
    if not lines:
        return
    page.heading(f"Device time by {title}", "a step; and host time of its own")
    for line in shown(page, lines):
        name = at(line.location, page).removeprefix(" at ") if line.location else line.name
        many = f" ({line.places:,} of them)" if line.places > 1 else ""
        page.labelled(
            f"  {line.share:.1%}",
            f"{time_text(line.device_us)}  {line.kernels:,.4g}x {shortened(name) if line.location is None else name}"
            f"{many}" + (f", host {time_text(line.host_us)}" if line.host_us else ""),
        )


def _write_communication(page: Page, found: Communication) -> None:
    page.heading("Communication", "a step")
    page.labelled(
        "  In all",
        f"{time_text(found.device_us)}: {time_text(found.overlapped_us)} beside other work and"
        f" {time_text(found.exposed_us)} exposed, with nothing else on the device (waiting for other ranks"
        " included)",
    )
    for one in shown(page, found.collectives):
        page.labelled(
            f"  {one.runs:,.3g}x",
            f"{one.kind}{_size_text(one)}{_group_text(one)}: {time_text(one.device_us)},"
            f" {time_text(one.exposed_us)} of it exposed",
        )


def _size_text(one: CollectiveCost) -> str:
    return f" of {bytes_text(one.nbytes)} {one.dtype}".rstrip() if one.nbytes else ""


def _group_text(one: CollectiveCost) -> str:
    if not (one.group or one.ranks):
        return ""
    if not one.ranks:
        return f", group {one.group}"
    known = ", ".join(map(str, one.ranks))
    ranks = known if len(one.ranks) <= _RANKS_IN_FULL else f"{one.ranks[0]} to {one.ranks[-1]}"
    return f", group {one.group} ({count_text(len(one.ranks), 'rank')}: {ranks})"


def _write_memory(page: Page, memory: MemoryUse) -> None:
    page.heading("Memory of the device", "as torch's allocator says")
    allocated, reserved = memory.peak_allocated_bytes, memory.peak_reserved_bytes
    if allocated is not None and reserved is not None:
        page.labelled(
            "  Peak", f"{bytes_text(allocated)} allocated, {bytes_text(reserved)} reserved"
        )
    page.labelled(
        "  Allocations",
        f"{memory.allocations:,.4g} a step, {bytes_text(round(memory.allocated_bytes))} in all;"
        f" {memory.allocations_in_gaps:,.3g} of them while the device idles",
    )
    if memory.growth_bytes is not None and memory.reserved_growth_bytes is not None:
        page.labelled(
            "  Growth",
            f"{more_bytes_text(round(memory.growth_bytes))} allocated and"
            f" {more_bytes_text(round(memory.reserved_growth_bytes))} reserved from step to step",
            style="yellow" if memory.growth_bytes > 0 else "",
        )


def write_graphs(page: Page, graphs: GraphUse | None) -> None:
    """What steps do with graphs; that they make them anew is said at the top of the page."""
    if graphs is None:
        return
    page.heading("CUDA graphs in the trace", "a step")
    page.labelled(
        "  Launches", f"{graphs.launches:,.3g}, which start {graphs.kernels:,.4g} device events"
    )
    if graphs.captures or graphs.instantiations:
        page.labelled(
            "  Made in steps",
            f"{graphs.captures:,.3g} {'capture' if graphs.captures == 1 else 'captures'} and"
            f" {graphs.instantiations:,.3g} {'instantiation' if graphs.instantiations == 1 else 'instantiations'}"
            f" ({time_text(graphs.instantiation_us)}){at(graphs.location, page)}",
            style="yellow",
        )
    for replay in shown(page, graphs.replays):
        number = f"graph {replay.graph_id}" if replay.graph_id else "a graph"
        maker = f" of {replay.maker}" if replay.maker else ""
        kernels = ", ".join(kernel_text(name) for name in replay.longest_kernels[:2])
        page.labelled(
            f"  {replay.launches:,.3g}x",
            f"{number}{maker}{at(replay.location, page)}: {replay.kernels:,.4g} device events,"
            f" {time_text(replay.device_us)}, host {time_text(replay.launch_us)} a launch"
            + (f"; mostly {kernels}" if kernels else "; none of its kernels is in the trace"),
        )
