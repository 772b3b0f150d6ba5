"""What dynamo and torch.export said of the steps that graphdoctor judged -> a section of docs/accuracy.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tables import Cells, table
from tables import Row as Line

Said = list[tuple[str, list[str]]]  # what, and the lines that it names, innermost first
BACKWARD = "Unsupported Tensor.backward() call"


def beside_tracers(
    models: list[Line], dynamo: list[Line], export: list[Line], *, notes: list[str]
) -> str:
    """Both sides by step, by hazard, and what they say where there is none."""
    tools = {"dynamo": _by_step(dynamo, _dynamo), "export": _by_step(export, _export)}
    steps = {(each["model"], each["mode"]): each for each in models if "verdict" in each}
    parts = [_opening(dynamo[0], export[0])]
    parts += [_steps_table(steps, tools), _hazards_table(steps, tools), _others(steps, tools)]
    return "\n".join([*parts, *notes, ""])


def _opening(dynamo: Line, export: Line) -> str:
    return f"""## Compared with torch._dynamo.explain and torch.export

The same steps were given to `torch._dynamo.explain` ({dynamo["date"]}, torch {dynamo["torch"]},
transformers {dynamo["transformers"]}) and to `torch.export.export(strict=False)` ({export["date"]},
torch {export["torch"]}), on the CPU. Neither is made to judge CUDA graphs: they cut where they cannot
trace. Copies between host and device, memory and streams do not exist for them there, and
torch.export accepts modules only, so it was run on forward passes only. dynamo breaks at the backward of
every training step, which is left out here. "Says something" is a graph break, a refusal, or an
operator in the exported graph that reads a value on the CPU.
"""


def _by_step(lines: list[Line], read: Callable[[Line], Said | None]) -> dict[tuple[str, str], Said]:
    found = {}
    for each in lines[1:]:
        said = read(each)
        if said is not None:
            found[each["model"], each["mode"]] = said
    return found


def _dynamo(line: Line) -> Said | None:
    if "dynamo" not in line:
        return None
    if line["dynamo"] == "raised":
        return [(line["error"], line["places"])]
    told = zip(line["breaks"], line["places"], strict=True)
    return [(why, at) for why, at in told if BACKWARD not in why]


def _export(line: Line) -> Said | None:
    if "export" not in line:
        return None
    if line["export"] == "refused":
        return [(f"refused: {line['error'].splitlines()[0]}", line["places"])]
    return [(f"{name} in the graph", at) for name, at, _ in line["reads"]]


def hazards(line: Line) -> list[tuple[str, str]]:
    """Rules and lines of what makes a capture fail or a replay wrong."""
    rules = [f for f in line.get("findings", ()) if not f["rule"].startswith("GD3")]
    return sorted({(finding["rule"], finding["place"]) for finding in rules})


def _steps_table(
    steps: dict[tuple[str, str], Line], tools: dict[str, dict[tuple[str, str], Said]]
) -> str:
    rows = []
    for tool, said in tools.items():
        counts: Counter[tuple[str, str, bool]] = Counter()
        for key, told in said.items():
            if key in steps:
                judged = "safe" if steps[key]["verdict"] == "safe" else "not safe"
                counts[key[1], judged, bool(told)] += 1
        for mode, judged in sorted({(mode, judged) for mode, judged, _ in counts}):
            loud, silent = counts[mode, judged, True], counts[mode, judged, False]
            rows.append((tool, mode, judged, loud + silent, loud, silent))
    head = ("tool", "mode", "graphdoctor", "steps", "says something", "says nothing")
    return "\n".join(table(head, rows))


def _hazards_table(
    steps: dict[tuple[str, str], Line], tools: dict[str, dict[tuple[str, str], Said]]
) -> str:
    """Each line of source that graphdoctor found in a step, all of them judged true above."""
    title = "Lines of these findings that a tool names, in any frame of what it says:"
    rows = []
    counts: Counter[tuple[str, str, str]] = Counter()
    for (model, mode), line in steps.items():
        for rule, place in hazards(line):
            if (model, mode) in tools["dynamo"]:
                counts[rule, mode, "all"] += 1
            for tool, said in tools.items():
                if any(place in at for _, at in said.get((model, mode), ())):
                    counts[rule, mode, tool] += 1
    for rule in sorted({rule for rule, _, _ in counts}):
        forward = [counts[rule, "inference", what] for what in ("all", "dynamo", "export")]
        training = [counts[rule, "training", what] for what in ("all", "dynamo")]
        rows.append((rule, *forward, *training))
    head = ("rule", "forward: lines", "dynamo", "export", "training: lines", "dynamo")
    return "\n".join([title, "", *table(head, rows)])


def _others(
    steps: dict[tuple[str, str], Line], tools: dict[str, dict[tuple[str, str], Said]]
) -> str:
    """What a tool says at no line of a finding: its false alarms, and what both may have missed."""
    title = "What they say where graphdoctor has no finding at any line that they name:"
    rows: list[Cells] = []
    for tool, said in tools.items():
        for key, told in sorted(said.items()):
            if key in steps:
                rows += _unmatched(tool, key, steps[key], told)
    head = ("tool", "model", "mode", "graphdoctor", "what", "innermost line")
    return "\n".join([title, "", *table(head, rows)])


def _unmatched(tool: str, key: tuple[str, str], line: Line, told: Said) -> Iterator[Cells]:
    places = {place for _, place in hazards(line)}
    seen = set()
    for why, at in told:
        innermost = at[0].removeprefix("transformers/") if at else ""
        if places.isdisjoint(at) and (why, innermost) not in seen:
            seen.add((why, innermost))
            yield tool, *key, line["verdict"], why[:120], innermost
