"""benchmarks/data/results/*.jsonl -> docs/results.md: each published figure and ours, and every strategy's row.

    python benchmarks/pages/results.py

A cell that no result file has is marked as not yet measured. Where a case was run several times, the
last run counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
from aims import missed, reached
from chart import chart
from comparison import compared, comparison, reasons
from programs import programs
from tables import Cells, Row, jsonl, table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks/gpu"))

from cases import commands, workloads  # noqa: E402

RESULTS = ROOT / "benchmarks/data/results"
SAMPLES = ROOT / "benchmarks/data/samples_h200_torch2.11.jsonl"
PAGE, CHART = ROOT / "docs/results.md", ROOT / "docs/results.svg"
MEASURING = ROOT / "docs/measuring.md"
BEGIN, END = "<!-- TIMING MISTAKE: written by make results -->", "<!-- END OF TIMING MISTAKE -->"
MISSING = "not yet measured"

INTRODUCTION = """# Results on a GPU

The time of one eager step, and of the same step with each strategy: graphdoctor's and those of PyTorch's compilers.
Speedups are wall-clock, interleaved with eager, with inputs copied in, and with the 95 % interval of the median.
[measuring.md](measuring.md) describes the method. Each strategy of each workload ran in a separate process. The
processes built, compiled, captured and verified side by side, with shared compiler caches. They were then timed one
after the other, alone.

Made by `make results` from `benchmarks/data/results/`, which `python benchmarks/gpu/strategies.py` writes.
"""


def main() -> None:
    parts = [INTRODUCTION]
    files = sorted(RESULTS.glob("*.jsonl"))
    for path in files:
        rows = jsonl(path)
        parts.append(_machine_page(rows))
        _write_mistake(rows)
        CHART.write_text(chart(compared(rows)), encoding="utf-8")
    if not files:
        parts.append(_machine_page([]))
    parts.extend(programs())
    PAGE.write_text("\n".join(parts), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)} from {len(files)} result files")


def _machine_page(rows: list[Row]) -> str:
    found, cells = _by_case(rows), compared(rows)
    planned = {each.name: each.strategies for each in workloads()}
    lines = [
        *headline(rows),
        *(reached(cells) if cells else ()),
        f"![Speedup over eager with its 95 % interval, for each strategy of each workload]({CHART.name})\n",
        "### The comparison\n",
        *comparison(cells, planned),
        "### What missed its aim\n",
        *missed(cells, planned),
        "### Published figures and ours\n",
        *table(
            ("workload", "published on", "published", "strategy", "measured here", "predicted"),
            _published(found),
        ),
        "### Prediction against measurement\n",
        *_accuracy(found),
        "### The recommended strategy against the others\n",
        *_recommended(found),
        "### Batch sizes\n",
        *_sweeps(found),
        "### Not verified, or not measured\n",
        *reasons(cells),
        *machines(rows),
        "### Every workload in every strategy\n",
        *_matrix(found),
    ]
    return "\n".join(lines)


def _by_case(rows: list[Row]) -> dict[str, Row]:
    """What is known of each case. Cells of the comparison replace their older rows."""
    whole = (*_whole_samples(), *(row for row in rows if "strategy" not in row))
    found = {row["case"]: row for row in whole if "case" in row}
    for one in compared(rows):
        older = found.get(one.case, {}).get("strategies") or []
        kept = [row for row in older if row["strategy"] not in one.outcomes]
        advice = one.recommendation
        found[one.case] = {
            "case": one.case,
            "strategies": [*map(msgspec.to_builtins, one.rows), *kept],
            "recommendation": msgspec.to_builtins(advice) if advice is not None else None,
            "dates": one.dates,
        }
    return found


def _write_mistake(rows: list[Row]) -> None:
    """The machine's own figures of timing a call without waiting for it, into docs/measuring.md."""
    found = next((row for row in rows[::-1] if row.get("case") == "timing mistake"), None)
    if found is None or "json" not in found:
        return
    about = next(row["about"] for row in rows if "about" in row)
    lines = table(
        (
            "ResNet-50, batch",
            "not synchronized (wrong)",
            "synchronized",
            "CUDA events, device only",
        ),
        (
            (str(batch), *(_ms(found["json"][f"batch_{batch}"][key]) for key in _CLOCKS))
            for batch in (1, 128)
        ),
    )
    text = MEASURING.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    machine = f"{about['gpu']}, torch {about['torch']}, {about['date']}"
    where = f"On an {machine} (published elsewhere: 0.01 s against 0.32 s):"
    shown = "\n".join([where, "", *lines])
    MEASURING.write_text(f"{before}{BEGIN}\n{shown}{END}{rest.split(END)[1]}", encoding="utf-8")


_CLOCKS = ("wrong_s", "right_s", "device_s")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _published(found: dict[str, Row]) -> Iterator[Cells]:
    for one in PUBLISHED:
        outcome = _outcome(found, one.case, one.strategy)
        yield (
            one.what,
            one.machine,
            one.figure or "-",
            f"`{one.strategy}`",
            _measured(outcome),
            _range(outcome.get("predicted")) if outcome else MISSING,
        )


def _outcome(found: dict[str, Row], case: str, strategy: str) -> Row | None:
    rows = (found.get(case) or {}).get("strategies") or []
    return next((row for row in rows if row["strategy"] == strategy), None)


def _whole_samples() -> Iterator[Row]:
    """The samples' whole steps as benchmarks/gpu/samples_and_rules.py measured them, where nothing newer is known."""
    for row in jsonl(SAMPLES):
        if row.get("measurement"):
            outcome = {
                "strategy": "whole",
                "status": "verified",
                "is_ours": True,
                "reason": "measured by benchmarks/gpu/samples_and_rules.py",
                "measurement": row["measurement"],
            }
            case = row["case"].removeprefix("sample:")
            yield {**row, "case": case, "strategies": [outcome]}


def _measured(outcome: Row | None) -> str:
    if outcome is None:
        return MISSING
    timed = outcome.get("measurement")
    if timed is None:
        return f"{outcome['status']}"
    word = "" if timed["word"] == "faster" else f", {timed['word']}"
    return (
        f"{timed['speedup']:.2f}x ({timed['speedup_low']:.2f} to {timed['speedup_high']:.2f}){word}"
    )


def _range(value: Row | None) -> str:
    if value is None:
        return "-"
    return f"{value['mid']:.2f}x ({value['low']:.2f} to {value['high']:.2f})"


def _pairs(found: dict[str, Row], *, from_operators: bool) -> Iterator[tuple[str, str, Row, Row]]:
    """Rows of the comparison were predicted from the operators alone, older ones from eager's times too."""
    for case, row in found.items():
        for outcome in row.get("strategies") or []:
            is_wanted = (outcome["strategy"] in row.get("dates", {})) == from_operators
            if is_wanted and outcome.get("predicted") and outcome.get("measurement"):
                yield case, outcome["strategy"], outcome["predicted"], outcome["measurement"]


def _accuracy(found: dict[str, Row]) -> Iterator[str]:
    yield "From one eager step's times on that GPU and its operators:\n"
    yield from _errors(list(_pairs(found, from_operators=False)))
    yield (
        "The ranges are those that were printed then. The errors of these predictions are in the width of later"
        " ranges: [prediction.md](prediction.md) has the current predictions of all these steps.\n"
    )
    yield "From the operators alone, with an unknown host, as on a machine without a GPU:\n"
    yield from _errors(list(_pairs(found, from_operators=True)))


def _errors(pairs: list[tuple[str, str, Row, Row]]) -> Iterator[str]:
    if not pairs:
        yield f"{MISSING}.\n"
        return
    errors = [abs(guess["mid"] / timed["speedup"] - 1) for _, _, guess, timed in pairs]
    inside = sum(guess["low"] <= timed["speedup"] <= guess["high"] for _, _, guess, timed in pairs)
    wrong = [
        f"`{case}` `{strategy}` ({guess['mid']:.2f}x predicted, {timed['speedup']:.2f}x measured)"
        for case, strategy, guess, timed in pairs
        if _wrong_sign(guess["mid"], timed["speedup"])
    ]
    yield (
        f"{len(pairs)} speedups were predicted and measured: median error {median(errors):.0%}, largest"
        f" {max(errors):.0%}; {inside} of {len(pairs)} measurements are in the predicted range."
    )
    yield f"Wrong sign outside 5 %: {'; '.join(wrong) if wrong else 'none'}.\n"


def _wrong_sign(guess: float, truth: float) -> bool:
    return (guess > 1.05 and truth < 0.95) or (guess < 0.95 and truth > 1.05)


def _recommended(found: dict[str, Row]) -> Iterator[str]:
    """Whether what is recommended is the fastest, and how far it is from the device's busy time."""
    rows = list(filter(None, (_beside_the_best(row) for row in found.values())))
    if not rows:
        yield f"{MISSING}.\n"
        return
    yield "Times of one step; a ratio above 1 means that the recommended one is the faster.\n"
    head = ("workload", "recommended", "best comparator", "ratio", "over the device's busy time")
    yield from table(head, rows)


def _beside_the_best(row: Row) -> Cells | None:
    said, timed = (
        row.get("recommendation"),
        [each for each in row.get("strategies") or [] if each.get("measurement")],
    )
    chosen = next((each for each in timed if said and each["strategy"] == said["strategy"]), None)
    if chosen is None:
        return None
    others = [each for each in timed if not each["is_ours"] and each["status"] == "verified"]
    best = min(others, key=_fast_us, default=None)
    busy = chosen.get("busy_share")
    return (
        f"`{row['case']}`",
        f"`{chosen['strategy']}` {_us(_fast_us(chosen))}",
        f"`{best['strategy']}` {_us(_fast_us(best))}" if best else "-",
        f"{_fast_us(best) / _fast_us(chosen):.2f}" if best else "-",
        f"{1 / busy:.2f}" if busy else "-",
    )


def _speedup(outcome: Row) -> float:
    return float(outcome["measurement"]["speedup"])


def _fast_us(outcome: Row) -> float:
    """Time of the step itself: eager differs between processes, so ratios to it do not compare."""
    return float(outcome["measurement"]["graph_us"])


def _sweeps(found: dict[str, Row]) -> Iterator[str]:
    for case in commands():
        if not case.name.startswith("sweep "):
            continue
        yield f"`{case.name.removeprefix('sweep ')}`\n"
        row = found.get(case.name)
        if row is None or "json" not in row:
            yield f"{row['error'] if row else MISSING}\n"
            continue
        yield from _sweep(row["json"])


def _sweep(swept: Row) -> Iterator[str]:
    head = ("batch", "eager", "graph", "speedup")
    yield from table(head, map(_point, swept["rows"]))
    yield f"{swept['end']['sentence']}\n"


def _point(point: Row) -> Cells:
    return str(point["batch"]), *_times(point["measurement"]), _measured(point)


def _times(timed: Row | None) -> tuple[str, str]:
    if timed is None:
        return "-", "-"
    return _us(timed["eager_us"]), _us(timed["graph_us"])


def _us(value: float) -> str:
    return f"{value:,.0f} µs" if value < 100_000 else f"{value / 1000:,.0f} ms"


def _matrix(found: dict[str, Row]) -> Iterator[str]:
    head = (
        "strategy", "verdict", "speedup", "predicted", "launches in graphs", "prepare", "memory", "pays after", "busy",
        "measured",
    )  # fmt: skip
    for case in workloads():
        row = found.get(case.name)
        yield f"#### `{case.name}`\n"
        if row is None or "strategies" not in row:
            yield f"{row['error'].strip().splitlines()[-1] if row else MISSING}\n"
            continue
        said = (row.get("recommendation") or {}).get("sentence", "")
        verdict = f"{row['verdict']}: {row['reason']}" if "verdict" in row else ""
        yield f"{' '.join(filter(None, (verdict, said)))}\n"
        if "note" in row:
            yield f"{row['note'].capitalize()}.\n"
        dates = row.get("dates", {})
        cells = (
            (*_cells(outcome), dates.get(outcome["strategy"], "before"))
            for outcome in row["strategies"] or []
        )
        yield from table(head, cells)


def _cells(outcome: Row) -> Cells:
    share, seconds, memory = (
        outcome.get(key) for key in ("captured_share", "prepare_s", "extra_bytes")
    )
    timed = outcome.get("measurement")
    return (
        f"`{outcome['strategy']}`",
        outcome["status"],
        _measured(outcome) if timed else _short(outcome.get("reason", "")),
        _range(outcome.get("predicted")),
        "-" if share is None else f"{share:.0%}",
        "-" if seconds is None else f"{seconds:.1f} s",
        "-" if memory is None else f"{memory / 2**20:,.0f} MiB",
        str(outcome.get("break_even_calls") or "-"),
        _shares(outcome.get("busy_share_eager"), outcome.get("busy_share")),
    )


def _shares(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return "-"
    return f"{before:.0%} to {after:.0%}"


def _short(text: str) -> str:
    text = text.replace("|", "/")
    return text if len(text) <= 120 else text[:117] + "..."


@dataclass(slots=True)
class _Machine:
    """The runs of one day on machines of one size."""

    runs: int = 0
    timed: int = 0
    seconds: float = 0.0


def headline(rows: Sequence[Row]) -> Iterator[str]:
    """Which GPU, which software, when; the title of the page's part."""
    runs = [row["about"] for row in rows if "about" in row]
    if not runs:
        yield "## No GPU yet\n"
        return
    dates = sorted({run["date"] for run in runs})
    software = " and ".join(
        dict.fromkeys(f"torch {run['torch']}, Python {run['python']}" for run in runs)
    )
    yield f"## {runs[-1]['gpu']}\n"
    yield (
        f"{software}, {dates[0]}{f' to {dates[-1]}' if len(dates) > 1 else ''}; each step was timed alone on one GPU."
        " [Machines](#machines) lists the runs.\n"
    )


def machines(rows: Sequence[Row]) -> Iterator[str]:
    found: dict[tuple[str, int, int], _Machine] = {}
    states: list[list[str]] = []
    one = _Machine()
    for row in rows:
        if "about" in row:
            run = row["about"]
            states.append(run["nvidia_smi"][0].split(", "))
            key = (run["date"], run["gpus"], run["cores"])
            one = found.setdefault(key, _Machine())
            one.runs += 1
        elif "prepared" in row:
            one.seconds += row["seconds"]
        elif "case" in row and "error" not in row:
            one.timed += 1
    if not found:
        return
    yield "### Machines\n"
    yield f"{_state(states)}\n"
    yield from table(
        ("date", "GPUs", "cores of the host", "runs", "rows", "prepared side by side in"),
        (_machine_cells(key, machine) for key, machine in sorted(found.items())),
    )


def _machine_cells(key: tuple[str, int, int], machine: _Machine) -> Cells:
    yield from key
    yield machine.runs
    yield machine.timed
    yield f"{machine.seconds:.0f} s" if machine.seconds else "-"


def _state(states: Sequence[Sequence[str]]) -> str:
    """What `nvidia-smi` said of the first GPU when each run began: the query of benchmarks/gpu/strategies.py."""
    names, drivers, _, clocks, limits, degrees = (
        set(column) for column in zip(*states, strict=True)
    )
    warm = sorted(map(int, degrees))
    return (
        f"Each host had {' or '.join(sorted(names))} with driver {' or '.join(sorted(drivers))}, clocks of up to"
        f" {' or '.join(sorted(clocks))} and a power limit of {' or '.join(sorted(limits))}; the GPUs had {warm[0]} to"
        f" {warm[-1]} °C when the runs began (`nvidia-smi`)."
    )


@dataclass(frozen=True, slots=True)
class Published:
    """One figure over eager. `case` and `strategy` name our cell that it is compared with."""

    what: str
    machine: str
    figure: str
    case: str
    strategy: str


_GELU_1 = "sample_models/gelu.py"
_GELU_32 = "sample_models/gelu.py:large_batch"
_K80 = "K80"
_VISION = "benchmarks/gpu/workloads/vision.py"

PUBLISHED = (
    Published("GELU chain, (1, 3, 224, 224), graph", _K80, "1.09x", _GELU_1, "whole"),
    Published("GELU chain, (32, 3, 224, 224), graph", _K80, "0.99x", _GELU_32, "whole"),
    Published("the same on 1 image, scripted", _K80, "1.82x", _GELU_1, "script"),
    Published("the same on 32 images, scripted", _K80, "3.11x", _GELU_32, "script"),
    Published("the same on 1 image, scripted, graph", _K80, "1.99x", _GELU_1, "script-graph"),
    Published("the same on 32 images, scripted, graph", _K80, "3.53x", _GELU_32, "script-graph"),
    Published(
        "Linear-Dropout training step, batch 32",
        "not named",
        "2.36x",
        "benchmarks/gpu/workloads/linear_dropout.py",
        "whole",
    ),
    Published(
        "Linear-Dropout training step, N=640",
        "none published",
        "",
        "sample_models/linear_dropout.py",
        "whole",
    ),
    Published(
        "Mask R-CNN's backbone, batch 1 (31 ms to 6 ms)",
        "not named",
        "5.2x",
        f"{_VISION}:mask_rcnn_backbone",
        "whole",
    ),
    Published("Mask R-CNN around it", "not named", "1.7x", f"{_VISION}:mask_rcnn", "modules"),
    Published(
        "BERT, masked positions gathered",
        "none published",
        "",
        "benchmarks/gpu/workloads/bert.py:gathered",
        "modules",
    ),
    Published(
        "BERT, static mask",
        "none published",
        "",
        "benchmarks/gpu/workloads/bert.py:static",
        "whole",
    ),
    *(
        Published(f"{what}, {precision}", "torch 2.0", figure, f"{_VISION}:{name}", "compile")
        for what, figure, model in (
            ("Swin-T training (11:46 to 12:17 min, precision not named)", "0.96x", "swin_t"),
            ("Swin-B training (19:33 to 13:49 min, precision not named)", "1.41x", "swin_b"),
            (
                "ConvNeXt-L training (16:57 to 15:56 min, precision not named)",
                "1.06x",
                "convnext_l",
            ),
        )
        for precision, name in (("fp32", f"{model}_fp32"), ("autocast", f"{model}_autocast"))
    ),
)


if __name__ == "__main__":
    main()
