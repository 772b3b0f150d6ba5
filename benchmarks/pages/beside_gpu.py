"""What graphdoctor said of each step without a GPU, beside what a GPU made of it -> a section of docs/accuracy.md."""

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
    "false alarm": "false alarms",
    "not analyzed": "not analyzed",
    "no GPU answer": "no answer from the GPU",
}


def beside_gpu(lines: list[Line]) -> str:
    about, steps = lines[0], _steps(lines[1:])
    judged = {key: judgement(*both) for key, both in steps.items()}
    parts = [_opening(about, judged), _by_family(judged), _lines_found(steps, judged)]
    for word in ("missed", "false alarm"):
        parts.append(_disagreements(word, steps, judged))
    return "\n".join(
        [*parts, _not_analyzed(steps, judged), _not_captured(steps, judged), _not_built(lines)]
    )


def _steps(lines: list[Line]) -> dict[Key, tuple[Line, Line]]:
    """Both answers to each step; an empty line where one is not there."""
    found: dict[Key, dict[str, Line]] = {}
    for each in lines:
        if "device" in each:
            key = (each["family"], each["model"], each["mode"])
            found.setdefault(key, {})[each["device"]] = each
    return {key: (said.get("emulated", {}), said.get("raw", {})) for key, said in found.items()}


def judgement(emulated: Line, raw: Line) -> str:
    """What the verdict was worth, the GPU's word taken as the truth."""
    if emulated.get("verdict", "unknown") == "unknown":
        return "not analyzed"
    if raw.get("raw") not in FACTS:
        return "no GPU answer"
    safe, captured = emulated["verdict"] == "safe", raw["raw"] == "captured"
    if captured:
        return "safe" if safe else "false alarm"
    return "missed" if safe else "found"


def _opening(about: Line, judged: dict[Key, str]) -> str:
    counts = Counter(judged.values())
    models = len({key[:2] for key in judged})
    names = ("transformers", "timm", "torchvision", "diffusers", "torch_geometric")
    versions = ", ".join(f"{name} {about[name]}" for name in names if name in about)
    words = ", ".join(f"{counts[key]} {word}" for key, word in COLUMNS.items())
    return f"""## Beside a GPU

{about["date"]}, H200, torch {about["torch"]}, Python {about["python"]}, {versions}.
`python benchmarks/truth/accuracy.py --device emulated,raw` asks graphdoctor about each step on the emulated
device, and captures the same step, of the same versions, by `torch.cuda.graph` alone: it warms up on a side
stream, captures, and replays on three sets of fresh inputs, each beside two runs of eager from the same state
and seeds. {models} models, {len(judged)} steps: {words}.

"Found" is a step that the GPU refused to capture, or whose replay was not what eager computes, and that was
not called safe. "Missed" was called safe; "false alarms" were not, and the GPU captured them and replayed
them rightly. A replay counts as right within ten times eager's own deviation and a thousandth of the
tensor's largest value.
"""


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
        if judged[key] == "found" and raw["raw"] == "refused" and raw["place"]:
            places = {each["place"].rpartition("/")[2] for each in emulated["findings"]}
            named[raw["place"] in places] += 1
    if not named:
        return ""
    return (
        f"The line where CUDA refused is among the findings of {named[True]} of the {named.total()}\n"
        "steps that it refused and that were found.\n"
    )


def _disagreements(word: str, steps: dict[Key, tuple[Line, Line]], judged: dict[Key, str]) -> str:
    rows = []
    for key, (emulated, raw) in sorted(steps.items()):
        if judged[key] == word:
            said = "; ".join(f"{f['rule']} {f['place']}" for f in _hazards(emulated))
            fact = f"{raw['raw']} {raw['place']} {raw['error']}".strip()
            rows.append((*key, emulated["verdict"], said or emulated["reason"], fact))
    head = ("family", "model", "mode", "verdict", "findings", "GPU")
    return _titled(COLUMNS[word].capitalize(), head, rows)


def _hazards(line: Line) -> list[dict[str, Any]]:
    return [each for each in line["findings"] if not each["rule"].startswith("GD3")]


def _not_analyzed(steps: dict[Key, tuple[Line, Line]], judged: dict[Key, str]) -> str:
    rows: list[Cells] = []
    for key, (emulated, raw) in sorted(steps.items()):
        if judged[key] == "not analyzed":
            why = next(
                (emulated[k] for k in ("crash", "raised", "refused", "reason") if k in emulated),
                "not asked",
            )
            rows.append((*key, " ".join(why.split())[:200], raw.get("raw", "")))
    return _titled("Not analyzed", ("family", "model", "mode", "why", "GPU"), rows)


def _not_captured(steps: dict[Key, tuple[Line, Line]], judged: dict[Key, str]) -> str:
    rows: list[Cells] = []
    for key, (_, raw) in sorted(steps.items()):
        if judged[key] == "no GPU answer":
            why = raw.get("crash") or f"{raw.get('raw', 'not asked')} {raw.get('error', '')}"
            rows.append((*key, why[:200]))
    return _titled("No answer from the GPU", ("family", "model", "mode", "why"), rows)


def _not_built(lines: list[Line]) -> str:
    rows = []
    for family in sorted({each["family"] for each in lines[1:]}):
        names = sorted(_unbuilt(lines, family))
        if names:
            rows.append((family, f"{len(names)}: {', '.join(names)}"))
    return _titled(
        "Not built: no small model of it ran in plain PyTorch", ("family", "models"), rows
    )


def _unbuilt(lines: list[Line], family: str) -> Iterator[str]:
    for each in lines[1:]:
        if each["family"] == family and (
            "not_built" in each or ("crash" in each and "mode" not in each)
        ):
            yield each["model"]


def _titled(title: str, head: Cells, rows: list[Any]) -> str:
    return "\n".join(
        [f"### {title}", "", *(table(map(str, head), rows) if rows else ["None.", ""])]
    )
