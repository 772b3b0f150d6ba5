"""An audited program -> a page for people."""

from __future__ import annotations

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import HORIZONTAL, Page
from graphdoctor.values.audited import AuditReport, OverwrittenOutput, StaleTensor
from graphdoctor.values.figures import count_text
from graphdoctor.values.locations import Location, path_text, place_text

_HAPPENED = {
    "freed": "was freed after the capture",
    "moved": "moved to another address after the capture",
    "rebound": "is other memory now than at capture",
}
_HELP = {
    "freed": "Keep a reference to the tensor while the graph exists, or capture again.",
    "moved": "Do not resize the tensor while the graph exists, or capture again.",
    "rebound": "Copy new values in place with `copy_()`, or capture again.",
}


def render(report: AuditReport, look: Look) -> str:
    """The page. Text from the program can neither color nor move anything in it."""
    page = Page(look)
    page.line((HORIZONTAL * look.width, "dim"))
    page.line(
        ("graphdoctor audit", "bold"),
        (f"  {path_text(' '.join(report.command), look.base)}", "dim"),
    )
    graphs = f"{count_text(report.captures, 'capture')}, {count_text(report.replays, 'replay')}"
    counts = (
        (len(report.stale_tensors), "stale tensor"),
        (len(report.overwritten_outputs), "overwritten output"),
    )
    found = ", ".join(
        count_text(count, what) if count else f"no {what} found" for count, what in counts
    )
    page.paragraph(f"{graphs} on the {report.device} device: {found}.")
    for each in report.stale_tensors:
        _write(page, each, look.base)
    for output in report.overwritten_outputs:
        _write_output(page, output, look.base)
    return page.render()


def _write(page: Page, each: StaleTensor, base: str) -> None:
    shape = f"{each.dtype}{list(each.shape)}"
    name = f"`{each.name}` ({shape})" if each.name else f"A tensor {shape}"
    page.blank()
    page.hanging("  ", f"{name} {_HAPPENED[each.reason]}.", style="red")
    use = "writes" if each.is_written else "reads"
    page.labelled(
        "  Used", f"{each.operator} {use} the captured address ({_place(each.used_at, base)})"
    )
    page.labelled("  Captured", _place(each.captured_at, base))
    page.labelled("  Replayed", f"{_place(each.replayed_at, base)}, replay {each.replay}")
    page.labelled("  Help", _HELP[each.reason])


def _write_output(page: Page, each: OverwrittenOutput, base: str) -> None:
    shape = f"{each.dtype}{list(each.shape)}"
    holds = f"`{each.name}` holds an output" if each.name else "An output"
    page.blank()
    page.hanging("  ", f"{holds} ({shape}) that a later replay overwrote.", style="red")
    page.labelled("  Kept", _place(each.kept_at, base))
    if each.operator:
        page.labelled("  Read", f"{each.operator} ({_place(each.read_at, base)})")
    page.labelled("  Captured", _place(each.captured_at, base))
    page.labelled("  Replayed", f"{_place(each.replayed_at, base)}, replay {each.replay}")
    page.labelled("  Help", "Keep a copy: `clone()` the output after its replay.")


def _place(location: Location | None, base: str) -> str:
    return place_text(location, base) if location is not None else "an unknown line"
