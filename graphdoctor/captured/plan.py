"""The plan of how a model is run, as a value and in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from graphdoctor.values.figures import bytes_text, count_text
from graphdoctor.values.report import Mode
from graphdoctor.values.speed import GraphMemory, memory_text

if TYPE_CHECKING:
    from graphdoctor.captured.parts import Parts
    from graphdoctor.captured.sizes import SizeUse
    from graphdoctor.captured.study import Study

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """`how` is "whole": one graph; "modules": the `modules` of these paths are graphs; or "eager".

    `launches` counts what one forward pass puts on the GPU, and `captured_launches` how much of it
    is in graphs. `obstacles` are the reasons, in sentences, why it is not all of it. `mode` says which
    calls these are: those without gradients, or those whose backward pass is a graph as well. `sizes`
    have a graph each, and `left_out` says why others that were asked for have none. `memory` is that of
    the graph of the whole forward pass, or of those of all sizes. `graphs_of_step` counts the graphs of
    a captured step, one for each signature of its calls. `proof` says how its replays compare with eager, where
    they were not compared bit for bit.
    """

    how: Literal["whole", "modules", "eager"]
    modules: tuple[str, ...] = ()
    launches: int = 0
    captured_launches: int = 0
    obstacles: tuple[str, ...] = ()
    mode: Mode = "inference"
    sizes: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()
    memory: GraphMemory | None = None
    graphs_of_step: int = 0
    proof: str = ""

    @property
    def coverage(self) -> float:
        """The share of the launches that are in graphs, 0.0 to 1.0."""
        return self.captured_launches / self.launches if self.launches else 0.0


def inference_plan(found: Study) -> tuple[CapturePlan, Parts | None]:
    """For calls without gradients."""
    total = found.launches.get("", 0)
    if found.graph is not None:
        plan = CapturePlan("whole", launches=total, captured_launches=total, memory=found.memory)
        return plan, None
    if found.parts is None:
        return CapturePlan("eager", launches=total, obstacles=found.obstacles), None
    return _in_parts(found, found.parts), found.parts


def training_plan(found: Study, made: Parts | str) -> tuple[CapturePlan, Parts | None]:
    """For calls whose backward pass follows; `made` may be the reason why there is none."""
    total = found.launches.get("", 0)
    if isinstance(made, str):
        obstacles = (*found.obstacles, made)
        return CapturePlan("eager", launches=total, obstacles=obstacles, mode="training"), None
    if made.paths == ("",):
        return CapturePlan("whole", launches=total, captured_launches=total, mode="training"), made
    plan = _in_parts(found, made)
    left_out = tuple(f"{path or 'the model'}: {why}" for path, why in made.left_out.items())
    return replace(plan, obstacles=(*found.obstacles, *left_out), mode="training"), made


def _in_parts(found: Study, parts: Parts) -> CapturePlan:
    return CapturePlan(
        "modules",
        modules=parts.paths,
        launches=found.launches.get("", 0),
        captured_launches=sum(found.launches.get(path, 0) for path in parts.paths),
        obstacles=found.obstacles,
    )


def explain(
    name: str,
    plan: CapturePlan,
    *,
    replayed: int,
    part_replays: int,
    fallbacks: Mapping[str, int],
    uses: Sequence[SizeUse] = (),
) -> str:
    """One sentence a line: what is replayed, what is not and why, and which calls ran eagerly."""
    since = _since(replayed, part_replays, fallbacks)
    return "\n".join((*_how(name, plan), *_why(plan), *_memory(plan), *map(_use, uses), *since))


def _how(name: str, plan: CapturePlan) -> Iterator[str]:
    if plan.graphs_of_step:
        graphs = count_text(plan.graphs_of_step, "CUDA graph")
        yield f"{name} is replayed as {graphs} of the whole step, with {count_text(plan.launches, 'launch')}."
        if plan.proof:
            yield f"Compared with eager: {plan.proof}."
    elif plan.how == "whole":
        passes = "graph" if plan.mode == "inference" else "graph for each of forward and backward"
        of_sizes = (
            f", for each of the sizes {', '.join(map(str, plan.sizes))}" if plan.sizes else ""
        )
        yield f"{name} is replayed as one {passes}, of {count_text(plan.launches, 'launch')}{of_sizes}."
    elif plan.how == "modules":
        yield (
            f"{count_text(len(plan.modules), 'module')} of {name} {_are(len(plan.modules))} replayed, "
            f"with {plan.captured_launches} of {count_text(plan.launches, 'launch')}; "
            f"the rest runs eagerly: {', '.join(plan.modules[:_SHOWN])}"
            + (", ..." if len(plan.modules) > _SHOWN else ".")
        )
    else:
        yield f"{name} runs eagerly."


def _why(plan: CapturePlan) -> Iterator[str]:
    for obstacle in plan.obstacles:
        yield f"Not as one graph: {obstacle.rstrip('.')}."
    for reason in plan.left_out:
        yield f"{reason.rstrip('.')}."


def _memory(plan: CapturePlan) -> Iterator[str]:
    found = plan.memory
    if found is None:
        return
    holds = "Its graphs hold" if plan.how == "whole" else "A graph of it would hold"
    yield f"{holds} {bytes_text(found.total_bytes)}: {memory_text(found)}."


def _use(use: SizeUse) -> str:
    if use.only:
        return (
            f"Size {use.size}: {count_text(use.exact, 'call')}; none is padded, since {use.only}."
        )
    return (
        f"Size {use.size}: {count_text(use.exact, 'call')} of that size and {use.padded} of less, "
        f"{use.padding:.0%} of whose rows were padding."
    )


def _since(replayed: int, part_replays: int, fallbacks: Mapping[str, int]) -> Iterator[str]:
    if replayed:
        yield f"{count_text(replayed, 'call')} of it {_was(replayed)} replayed."
    if part_replays:
        yield f"{count_text(part_replays, 'call')} of graphed modules {_was(part_replays)} replayed."
    for reason, count in sorted(fallbacks.items(), key=lambda item: -item[1]):
        yield f"{count_text(count, 'call')} ran eagerly: {reason.rstrip('.')}."


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
