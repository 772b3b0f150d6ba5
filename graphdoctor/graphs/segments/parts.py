"""What a graph is split into, as values, and as text for a report; no torch."""

from __future__ import annotations

from dataclasses import dataclass

from graphdoctor.values.figures import count_text
from graphdoctor.values.locations import Location, bracketed, file_line

_SHOWN = 3  # reasons of one part


@dataclass(frozen=True, slots=True)
class Unsafe:
    """One operator that cannot be captured. `why` follows its name: "aten.nonzero.default waits"."""

    operator: str
    why: str
    location: Location | None

    @property
    def text(self) -> str:
        return f"{self.operator} {self.why}{bracketed(self.location)}"


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive nodes of a graph. Captured as one CUDA graph, or run eagerly for these reasons."""

    captured: bool
    nodes: int
    launches: int
    first: Location | None
    last: Location | None
    unsafe: tuple[Unsafe, ...] = ()

    @property
    def text(self) -> str:
        how = "one CUDA graph" if self.captured else "eager"
        lines = f"{how}: {count_text(self.launches, 'launch')}{_span(self.first, self.last)}"
        if self.captured:
            return lines
        shown = "; ".join(unsafe.text for unsafe in self.unsafe[:_SHOWN])
        more = len(self.unsafe) - _SHOWN
        why = shown or "too few launches to pay"
        return f"{lines}, because {why}" + (f"; and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """One graph and its parts, in order. `name` says which pass it is: "forward", "backward"."""

    name: str
    parts: tuple[Part, ...]

    @property
    def launches(self) -> int:
        return sum(part.launches for part in self.parts)

    @property
    def captured_launches(self) -> int:
        return sum(part.launches for part in self.parts if part.captured)

    @property
    def text(self) -> str:
        return "\n".join((f"{self.name}:", *(f"  {part.text}" for part in self.parts)))


@dataclass(frozen=True, slots=True)
class Break:
    """Where the graphs end and Python goes on: the reason, and the user's line."""

    reason: str
    location: Location | None

    @property
    def text(self) -> str:
        return f"Python goes on{bracketed(self.location)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class SegmentsPlan:
    """The graphs of one step, and the breaks between them."""

    graphs: tuple[GraphPlan, ...]
    breaks: tuple[Break, ...]

    @property
    def captured_share(self) -> float | None:
        """Of the launches in the graphs; None where there is no launch."""
        launches = sum(graph.launches for graph in self.graphs)
        if not launches:
            return None
        return sum(graph.captured_launches for graph in self.graphs) / launches

    @property
    def summary(self) -> str:
        parts = [part for graph in self.graphs for part in graph.parts]
        captured = [part for part in parts if part.captured]
        inside = sum(part.launches for part in captured)
        launches = sum(part.launches for part in parts)
        return (
            f"{count_text(len(self.graphs), 'graph')} in {count_text(len(parts), 'part')}, "
            f"{len(captured)} of them captured, with {inside} of {count_text(launches, 'launch')}; "
            f"{count_text(len(self.breaks), 'graph break')}"
        )

    @property
    def text(self) -> str:
        """The whole plan, one line a part and a break."""
        bodies = [graph.text for graph in self.graphs] + [each.text for each in self.breaks]
        return "\n".join((self.summary, *bodies))


def _span(first: Location | None, last: Location | None) -> str:
    if first is None or last is None:
        return ""
    if first.file != last.file:
        return f", {file_line(first)} to {file_line(last)}"
    if first.line == last.line:
        return f", {file_line(first)}"
    low, high = sorted((first.line, last.line))
    return f", {file_line(Location(first.file, low))}-{high}"
