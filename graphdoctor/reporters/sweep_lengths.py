"""Which sizes to capture for a log of sizes -> a part of the sweep's page: the sizes, others beside them, settings."""

from __future__ import annotations

import textwrap

from graphdoctor.reporters.page import Page
from graphdoctor.values.figures import count_text, time_text
from graphdoctor.values.sweep import Capturing, LengthPlan

_SHOWN = 16  # sizes, one a line


def write_lengths(page: Page, plan: LengthPlan) -> None:
    """The sizes, what they bring beside usual ones, and how to say so to vLLM, Inductor and torch."""
    _write_chosen(page, plan)
    _write_beside(page, plan)
    page.heading("Settings")
    for line in _listed(plan.chosen.sizes):
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


def _write_beside(page: Page, plan: LengthPlan) -> None:
    page.heading("Beside usual sizes")
    page.line((f"  {'':<16}{'graphs':>7} {'a call':>9} {'padding':>8} {'eager':>7}", "dim"))
    for one in (plan.chosen, *plan.beside):
        page.line((_beside_text(one, plan.calls), ""))


def _beside_text(one: Capturing, calls: int) -> str:
    return (
        f"  {one.name:<16}{len(one.sizes):>7} {time_text(one.mean_us):>9} {one.padding:>8.1%}"
        f" {one.eager_calls / calls:>7.1%}"
    )


def _listed(sizes: tuple[int, ...]) -> list[str]:
    text = f"sizes = [{', '.join(map(str, sizes))}]"
    return textwrap.wrap(text, width=76, subsequent_indent="    ", break_long_words=False)


_SETTINGS = (
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
