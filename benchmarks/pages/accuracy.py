"""benchmarks/data/accuracy*.jsonl, and what reading the source said of each finding -> docs/accuracy.md.

python benchmarks/pages/accuracy.py
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from beside_gpu import beside_gpu, on_gpu
from tables import Row as Line
from tables import jsonl, table
from tracers import beside_tracers

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "benchmarks/data"
PAGE = ROOT / "docs/accuracy.md"
VERDICTS = DATA / "accuracy.jsonl"  # benchmarks/truth/accuracy.py
JUDGED = DATA / "accuracy_judged.jsonl"
DYNAMO = DATA / "accuracy_dynamo.jsonl"  # --mode inference, then --mode training
EXPORT = DATA / "accuracy_export.jsonl"
ADVICE = DATA / "advice.jsonl"  # benchmarks/truth/advice.py
BESIDE_GPU = DATA / "accuracy_beside_h200_torch2.11.jsonl"  # the same with --device emulated,raw
ON_GPU = DATA / "accuracy_on_h100_torch2.11.jsonl"  # and with --device cuda, without messages


def page(lines: list[Line], judged: list[Line]) -> str:
    about, models = lines[0], lines[1:]
    seen = {(each["rule"], each["place"]): each for each in judged if "rule" in each}
    parts = [opening(about, models), totals(models), findings(models, seen)]
    parts += [without_findings(models, judged), advice(jsonl(ADVICE))]
    beside = jsonl(BESIDE_GPU)
    parts[1:1] = [beside_gpu(beside, judged), on_gpu(jsonl(ON_GPU), beside)]
    notes = [each["tracers"] for each in judged if "tracers" in each]
    parts.append(beside_tracers(models, jsonl(DYNAMO), jsonl(EXPORT), notes=notes))
    parts += [failures(models), every_model(models)]
    return "\n".join(parts)


def opening(about: Line, models: list[Line]) -> str:
    verdicts = [each for each in models if "verdict" in each]
    architectures = len({each["model"] for each in verdicts})
    seconds = sum(each.get("analyze_s", 0) for each in models)
    return f"""# How true the verdicts are

`python benchmarks/truth/accuracy.py` makes architectures of transformers small, with random weights, from
their own configuration classes, and analyzes each on the emulated device: the forward
pass in evaluation mode, and, if the model returns a loss, forward, backward and a step of SGD in
training mode. `benchmarks/pages/accuracy.py` writes this page from its lines.

{about["date"]}: graphdoctor at {about["commit"]}, transformers {about["transformers"]},
torch {about["torch"]}, Python {about["python"]}. {architectures} architectures, {len(verdicts)} verdicts,
{seconds:.0f} s of analysis in all on one core of a machine that other work shared.
Sizes are small, so hazards that depend on size are not seen.
"""


def totals(models: list[Line]) -> str:
    groups: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for each in models:
        if "verdict" in each:
            groups[each["kind"], each["mode"]][each["verdict"]] += 1
            groups["all", each["mode"]][each["verdict"]] += 1
    rows = []
    for (kind, mode), counts in sorted(groups.items()):
        figures = [counts[name] for name in ("safe", "partly-safe", "unsafe", "unknown")]
        rows.append((kind, mode, sum(counts.values()), *figures))
    head = ("kind", "mode", "architectures", "safe", "partly safe", "unsafe", "unknown")
    return "\n".join(["## Verdicts", "", *table(head, rows)])


def findings(models: list[Line], seen: dict[tuple[str, str], Line]) -> str:
    """Each line of source that was found, once, with what reading it said."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    code: dict[tuple[str, str], str] = {}
    for each in models:
        for finding in each.get("findings", ()):
            if not finding["rule"].startswith("GD3"):
                key = (finding["rule"], finding["place"])
                found[key].add(each["model"])
                code[key] = finding["code"]
    said = Counter(seen[key]["judgement"] if key in seen else "not judged" for key in found)
    parts = ["## Findings, each compared with the source", ""]
    parts.append(", ".join(f"{count} {word}" for word, count in said.most_common()) + ":")
    parts.append('"true" means that the line does this on CUDA while a graph is captured.')
    shown = sum("H200 refuses" in seen[key]["why"] for key in found if key in seen)
    parts.append(
        f"An H200 itself refused at {shown} of them, as a step's first; the rest was read."
    )
    rows = []
    for key in sorted(found, key=lambda key: (-len(found[key]), key)):
        verdict = seen.get(key, {"judgement": "not judged", "why": ""})
        text = f"`{code[key][:70]}`" if code[key] else ""
        place = f"{key[1].removeprefix('transformers/')}<br>{text}" if key[1] else "no line"
        rows.append((key[0], place, len(found[key]), verdict["judgement"], verdict["why"]))
    head = ("rule", "line", "models", "judgement", "why")
    return "\n".join([*parts, "", *table(head, rows)])


def without_findings(models: list[Line], judged: list[Line]) -> str:
    """Verdicts that no finding explains."""
    why = {
        (each["model"], each["mode"]): each
        for each in judged
        if "judgement" in each and "model" in each
    }
    title = ["## Not safe, and no finding says why", ""]
    rows = []
    for each in models:
        if each.get("verdict", "safe") != "safe" and not hazards(each):
            said = why.get((each["model"], each["mode"]), {"judgement": "not judged", "why": ""})
            judgement = f"{said['judgement']}: {said['why']}" if said["why"] else said["judgement"]
            rows.append((each["model"], each["mode"], each["verdict"], each["reason"], judgement))
    if not rows:
        return "\n".join([*title, "None.", ""])
    return "\n".join([*title, *table(("model", "mode", "verdict", "reason", "judgement"), rows)])


def advice(lines: list[Line]) -> str:
    """For which variants the printed cure holds, by rule."""
    about, variants = lines[0], lines[1:]
    held: dict[str, list[bool]] = defaultdict(list)
    for each in variants:
        held[each["rule"]].append(each["holds"])
    total = sum(map(sum, held.values()))
    rows = [(rule, len(results), sum(results)) for rule, results in sorted(held.items())]
    failed = [
        f"`{each['variant']}` ({each['rule']}): {each['why']}"
        for each in variants
        if not each["holds"]
    ]
    text = f"""## Cures that hold

`python benchmarks/truth/advice.py OUT.jsonl` takes steps with one hazard each, written as public repositories write
them (`tests/rules/advice/`, `tests/rules/test_advice*.py`), and the same steps changed as the printed cure says. A cure
holds if the step after it has no finding, is captured on the emulated device, and replays as eager runs it.
{about["compared"]} of the steps also run in eager before and after the cure, and must return equal values; the others
draw random numbers, leave the optimizer out, get other inputs, or are tests of an older form.
{about["date"]}, torch {about["torch"]}: {total} of {len(variants)} hold ({total / len(variants):.0%}).

The steps were written together with the cures, and no GPU ran them: the share says that the cures work as printed, and
not how often the code of others is like one of these steps.
"""
    return "\n".join([text, *table(("rule", "variants", "cures that hold"), rows), *failed])


def hazards(line: Line) -> list[str]:
    rules = (each["rule"] for each in line.get("findings", ()))
    return sorted({rule for rule in rules if not rule.startswith("GD3")})


def failures(models: list[Line]) -> str:
    rows = []
    words = {
        "crash": "the process ended, or its time did",
        "raised": "graphdoctor raised",
        "refused": "graphdoctor refused",
        "not_built": "no small model ran in plain PyTorch",
        "no_loss": "no training step: no loss from plain labels",
    }
    for key, word in words.items():
        names = sorted({each["model"] for each in models if key in each})
        rows.append((word, f"{len(names)}: {', '.join(names)}"))
    return "\n".join(["## No verdict", "", *table(("what happened", "models"), rows)])


def every_model(models: list[Line]) -> str:
    rows = []
    for each in sorted(models, key=lambda line: (line["model"], line.get("mode", ""))):
        if "verdict" in each:
            cells = [each["model"], each["mode"], each["verdict"], each["operators"]]
            cells += [each["analyze_s"], " ".join(hazards(each)), "; ".join(each["limits"])[:90]]
            rows.append(cells)
    head = ("model", "mode", "verdict", "operators", "s", "rules", "limits")
    return "\n".join(["## Every model", "", *table(head, rows)])


def main() -> None:
    PAGE.write_text(page(jsonl(VERDICTS), jsonl(JUDGED)), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
