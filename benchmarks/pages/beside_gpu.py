"""What graphdoctor said of each step without a GPU, compared with a GPU -> a section of docs/accuracy.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tables import Cells, table
from tables import Row as Line

Key = tuple[str, str, str]  # family, model, mode
FACTS = ("captured", "refused", "differs")
COLUMNS = {
    "safe": "safe, and captured",
    "found": "found",
    "missed": "missed",
    "undecided": "undecided",
    "false alarm": "false alarms",
    "not analyzed": "not analyzed",
    "no GPU answer": "no result from the GPU",
}


# Why a model was not built, by words of its error; other errors are named by their type.
UNBUILT = (
    ("parameters are too many", "no configuration of it was small enough"),
    ("no small configuration", "no small configuration of it could be made"),
    ("ModuleNotFoundError", "it needs a library that was not installed"),
    ("ImportError", "it needs a library that was not installed"),
    ("OSError", "it needs a download"),
    ("missing ", "it needs arguments that the builder does not make"),
    ("have to specify", "it needs arguments that the builder does not make"),
    ("cannot be `None`", "it needs arguments that the builder does not make"),
)


def beside_gpu(lines: list[Line], read: list[Line]) -> str:
    """`read` holds what was found out by hand: the steps that the run does not decide, and notes."""
    about, every = lines[0], _steps(lines[1:])
    steps = {key: both for key, both in every.items() if all(both)}
    why = {(e["family"], e["model"], e["mode"]): e["undecided"] for e in read if "undecided" in e}
    notes = {each["section"]: each["note"] for each in read if "section" in each}
    judged = {key: judgement(*both) for key, both in steps.items()}
    judged |= {key: "undecided" for key in why if judged.get(key) == "missed"}
    parts = [
        _opening(about, judged, asked_once=len(every) - len(steps)),
        _by_family(judged),
        _lines_found(steps, judged),
    ]
    for word in ("missed", "false alarm"):
        parts.append(_disagreements(word, steps, judged, note=notes.get(word, "")))
    parts += [_undecided(steps, judged, why), _not_analyzed(steps, judged, notes)]
    return "\n".join([*parts, _not_captured(steps, judged), _not_built(lines)])


def on_gpu(lines: list[Line], beside: list[Line]) -> str:
    """The same steps analyzed with `--device cuda`; the captures are those in `beside`."""
    about, captures = lines[0], {key: both[1] for key, both in _steps(beside[1:]).items()}
    steps = {}
    for each in lines[1:]:
        key = (each["family"], each["model"], each.get("mode", ""))
        if "device" in each and captures.get(key):
            steps[key] = (each, captures[key])
    judged = {key: judgement(*both) for key, both in steps.items()}
    counts = Counter(judged.values())
    words = ", ".join(f"{counts[key]} {word}" for key, word in COLUMNS.items())
    opening = f"""## On a GPU

{about["date"]}, {about["gpu"]}, torch {about["torch"]}, Python {about["python"]}; the captures are those of the
H200 above. `python benchmarks/truth/accuracy.py --device cuda` analyzes each step on the GPU itself, where it is
captured and replayed. {len(judged)} steps: {words}. {about["since"]}
"""
    parts = [opening, _by_family(judged), _lines_found(steps, judged)]
    parts += [_disagreements(word, steps, judged, note="") for word in ("missed", "false alarm")]
    return "\n".join([*parts, _not_analyzed(steps, judged, {})])


def _steps(lines: list[Line]) -> dict[Key, tuple[Line, Line]]:
    """Both results of each step; an empty line where one is not there."""
    found: dict[Key, dict[str, Line]] = {}
    for each in lines:
        if "device" in each:
            key = (each["family"], each["model"], each["mode"])
            found.setdefault(key, {})[each["device"]] = each
    return {key: (said.get("emulated", {}), said.get("raw", {})) for key, said in found.items()}


def judgement(emulated: Line, raw: Line) -> str:
    """What the verdict was worth, the GPU's word taken as the truth."""
    if raw.get("raw") not in FACTS:
        return "no GPU answer"
    if emulated.get("verdict", "unknown") == "unknown":
        return "not analyzed"
    safe, captured = emulated["verdict"] == "safe", raw["raw"] == "captured"
    if captured:
        return "safe" if safe else "false alarm"
    return "missed" if safe else "found"


def _opening(about: Line, judged: dict[Key, str], *, asked_once: int) -> str:
    counts = Counter(judged.values())
    models = len({key[:2] for key in judged})
    names = ("transformers", "timm", "torchvision", "diffusers", "torch_geometric")
    versions = ", ".join(f"{name} {about[name]}" for name in names if name in about)
    words = ", ".join(f"{counts[key]} {word}" for key, word in COLUMNS.items())
    return f"""## Compared with a GPU

{about["date"]}, H200, torch {about["torch"]}, Python {about["python"]}, {versions}.
`python benchmarks/truth/accuracy.py --device emulated,raw` analyzes each step on the emulated
device, and captures the same step, of the same versions, by `torch.cuda.graph` alone. It warms up on a side
stream, captures, and replays on three sets of fresh inputs. Each replay is compared with two eager runs from the
same state and seeds. {models} models, {len(judged)} steps: {words}.
{_asked_when(about, asked_once=asked_once)}
The GPU refused to capture some steps, or their replays did not match eager. "Found" are those of them that were not
called safe, "missed" those that were. "False alarms" were not called safe, but the GPU captured them and their replays
matched eager. A replay matches within ten times eager's nondeterminism and a thousandth of the tensor's largest
value. "Undecided" was called safe, and its replay differed for a reason in how this run compared.
"""


def _asked_when(about: Line, *, asked_once: int) -> str:
    """Verdicts and captures may be from several runs; `since` is written by hand."""
    lines = [about["since"]] if "since" in about else []
    if asked_once:
        lines.append(
            f"Not counted, because the time was up after one of the two results: {asked_once} steps."
        )
    return "".join(f"{line}\n" for line in lines)


def _by_family(judged: dict[Key, str]) -> str:
    counts: Counter[tuple[str, str, str]] = Counter()
    for (family, _, mode), word in judged.items():
        counts[family, mode, word] += 1
        counts["all", "", word] += 1
    groups = sorted({key[:2] for key in counts})
    rows = []
    for group in groups:
        figures = [counts[*group, word] for word in COLUMNS]
        rows.append((*group, sum(figures), *figures))
    return "\n".join(table(("family", "mode", "steps", *COLUMNS.values()), rows))


def _lines_found(steps: dict[Key, tuple[Line, Line]], judged: dict[Key, str]) -> str:
    """How often the very line of the refusal is named."""
    named: Counter[bool] = Counter()
    for key, (emulated, raw) in steps.items():
        # Where all packages are in a folder of the name torch, this run kept the benchmark's own line.
        if judged[key] == "found" and raw["raw"] == "refused" and not is_ours(raw["place"]):
            places = {each["place"].rpartition("/")[2] for each in emulated["findings"]}
            named[raw["place"] in places] += 1
    refused = sum(
        judged[key] == "found" and raw["raw"] == "refused" for key, (_, raw) in steps.items()
    )
    if not named:
        return (
            f"Of the {refused} steps that CUDA refused and that were found, the run kept no line of a model: whether\n"
            "the line of the refusal is among the findings is not known.\n"
        )
    return (
        f"Of the {refused} steps that CUDA refused and that were found, the run kept a line of the model, where\n"
        f"it was refused, for {named.total()}: it is among the findings of {named[True]} of them.\n"
    )


def is_ours(place: str) -> bool:
    """Whether a line is none of the model's: none at all, or the benchmark's own."""
    return not place or place.startswith("zoo")


def _disagreements(
    word: str, steps: dict[Key, tuple[Line, Line]], judged: dict[Key, str], *, note: str
) -> str:
    rows = []
    for key, (emulated, raw) in sorted(steps.items()):
        if judged[key] == word:
            said = "; ".join(f"{f['rule']} {f['place']}" for f in _hazards(emulated))
            fact = f"{raw['raw']} {raw['place']} {raw['error']}".strip()
            rows.append((*key, emulated["verdict"], said or emulated["reason"], fact))
    head = ("family", "model", "mode", "verdict", "findings", "GPU")
    return _titled(COLUMNS[word].capitalize(), head, rows, note=note)


def _undecided(
    steps: dict[Key, tuple[Line, Line]], judged: dict[Key, str], why: dict[Key, str]
) -> str:
    rows = [
        (*key, steps[key][1]["error"], why[key])
        for key, word in sorted(judged.items())
        if word == "undecided"
    ]
    return _titled("Undecided by this run", ("family", "model", "mode", "GPU", "why"), rows)


def _hazards(line: Line) -> list[dict[str, Any]]:
    return [each for each in line["findings"] if not each["rule"].startswith("GD3")]


def _not_analyzed(
    steps: dict[Key, tuple[Line, Line]], judged: dict[Key, str], notes: dict[str, str]
) -> str:
    rows: list[Cells] = []
    for key, (emulated, raw) in sorted(steps.items()):
        if judged[key] == "not analyzed":
            rows.append((*key, _said(emulated), raw.get("raw", "")))
    head = ("family", "model", "mode", "why", "GPU")
    return _titled("Not analyzed", head, rows, note=notes.get("not analyzed", ""))


def _not_captured(steps: dict[Key, tuple[Line, Line]], judged: dict[Key, str]) -> str:
    rows: list[Cells] = []
    for key, (emulated, raw) in sorted(steps.items()):
        if judged[key] == "no GPU answer":
            why = raw.get("crash") or f"{raw.get('raw', 'not run')} {raw.get('error', '')}"
            rows.append((*key, why[:200], _said(emulated)))
    safe = sum(
        judged[key] == "no GPU answer" and emulated.get("verdict") == "safe"
        for key, (emulated, _) in steps.items()
    )
    note = f"Called safe without a GPU: {safe or 'none'} of them."
    head = ("family", "model", "mode", "why", "without a GPU")
    return _titled("No result from the GPU", head, rows, note=note)


def _said(emulated: Line) -> str:
    """What graphdoctor said of the step on the emulated device, with the doubts of its report."""
    kinds = ("crash", "raised", "refused", "reason")
    why = next((emulated[kind] for kind in kinds if kind in emulated), "not run")
    doubts = [limit for limit in emulated.get("limits", ()) if limit not in why]
    return " ".join("; ".join([why, *doubts]).split())[:300]


def _not_built(lines: list[Line]) -> str:
    """By family and reason, the most frequent first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for family, model, why in _unbuilt(lines):
        groups.setdefault((family, why), []).append(model)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], -len(group[1]), group[0][1]))
    rows = [(*key, f"{len(names)}: {', '.join(sorted(names))}") for key, names in ordered]
    total = sum(len(names) for names in groups.values())
    return _titled(
        f"Not built: no small model of {total} types ran in plain PyTorch",
        ("family", "why", "models"),
        rows,
    )


def _unbuilt(lines: list[Line]) -> Iterator[tuple[str, str, str]]:
    """Family, model and reason."""
    for each in lines[1:]:
        if "not_built" in each:
            yield each["family"], each["model"], _why_unbuilt(each["not_built"])
        elif "crash" in each and "mode" not in each:
            yield each["family"], each["model"], each["crash"]


def _why_unbuilt(error: str) -> str:
    known = next((words for mark, words in UNBUILT if mark in error), None)
    return known or f"{error.partition(':')[0]} in its constructor or its first eager run"


def _titled(title: str, head: Cells, rows: list[Any], *, note: str = "") -> str:
    said = [note, ""] if note and rows else []
    shown = table(map(str, head), rows) if rows else ["None.", ""]
    return "\n".join([f"### {title}", "", *said, *shown])
