"""benchmarks/data/{programs,step_programs}_*.jsonl -> how much faster whole programs become, and why some do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tables import Cells, Row, jsonl, table

DATA = Path(__file__).resolve().parents[2] / "benchmarks/data"
PUBLIC = DATA / "programs_h100_torch2.11.jsonl"
BY_HAND = DATA / "programs_by_hand_h100_torch2.11.jsonl"
OURS = DATA / "step_programs_h100_torch2.11.jsonl"
_OF_HAND_MADE = 0.8  # of the speed of a version by hand
_NONE = "-"


def programs() -> Iterator[str]:
    """The section, or nothing before public programs were measured."""
    if not PUBLIC.exists():
        return
    about, *rows = jsonl(PUBLIC)
    yield f"## Programs, on an {about['gpu']}\n"
    yield (
        "Public programs as they are, from one optimizer step to the next with all that they do between, loading"
        f" included (torch {about['torch']}, {about['date']}, graphdoctor {about['code']}): eager, with the diff"
        " that `graphdoctor run --diff` wrote and verified there,"
        " and with torch.compile put in by hand, the faster of its default and reduce-overhead"
        " modes. New lines are those of the diff that do not only move.\n"
    )
    head = (
        "program",
        "eager, µs",
        "our diff",
        "torch.compile",
        "lines",
        "of them new",
        "why not more",
    )
    yield from table(head, map(_public, rows))
    about, *rows = jsonl(BY_HAND)
    yield (
        f"{len(rows)} of them, compared with versions with `torch.cuda.graph` that were written by hand"
        " (`benchmarks/gpu/programs/by_hand/`), timed in turns in another run"
        f" ({about['date']}, graphdoctor {about['code']}). The first steps include captures:\n"
    )
    head = (
        "program",
        "eager, µs",
        "our diff",
        "by hand",
        "our share of the speed",
        "its share in the second half of the steps",
        "why not more",
    )
    yield from table(head, map(_beside_hand, rows))
    yield (
        "Six steps of `benchmarks/gpu/step_programs.py`, and versions by hand with `torch.cuda.graph`:\n"
    )
    head = ("step", "eager, µs", "`capture(step)`", "by hand", "reduce-overhead", "why not more")
    yield from table(head, _steps(jsonl(OURS)[1:]))


def _public(row: Row) -> Cells:
    ways = {way: found for way, found in row.get("ways", {}).items() if "step_us" in found}
    eager, ours = (
        ways[way]["step_us"] if way in ways else None for way in ("eager", "graphdoctor")
    )
    # Those of another run carry the eager time of that run.
    compiled = max(
        (
            found.get("eager_us", eager) / found["step_us"]
            for way, found in ways.items()
            if way.startswith("compile")
        ),
        default=None,
    )
    lines = row.get("diff_lines") or _NONE
    new = row.get("new_lines") if row.get("diff_lines") else _NONE
    why = _why(row, ours, compiled, eager)
    gain, tried = _times(eager, ours), row.get("patch") or {}
    if ours is None and tried.get("is_measured"):
        gain, why = f"{tried['speedup']['mid']:.2f}x", "timed by `run --diff` only"
    return (
        row["program"],
        _us(eager),
        gain,
        _NONE if compiled is None else f"{compiled:.2f}x",
        lines,
        new,
        why,
    )


def _eager_calls(row: Row) -> str:
    fallbacks = row["ways"]["graphdoctor"].get("fallbacks") or {}
    reason = max(fallbacks, key=lambda each: fallbacks[each], default="")
    return f"{fallbacks[reason]} calls ran eagerly: {reason}" if fallbacks else ""


def _beside_hand(row: Row) -> Cells:
    us = {way: found["step_us"] for way, found in row["ways"].items()}
    late = {way: found.get("late_step_us") for way, found in row["ways"].items()}
    eager, ours, hand = us["eager"], us["graphdoctor"], us["by hand"]
    why = _eager_calls(row) or row.get("why", "") if hand / ours < _OF_HAND_MADE else ""
    shares = _share(ours, hand), _share(late["graphdoctor"], late["by hand"])
    return row["program"], _us(eager), _times(eager, ours), _times(eager, hand), *shares, why


def _share(ours: float | None, hand: float | None) -> str:
    return _NONE if ours is None or hand is None else f"{100 * hand / ours:.0f} %"


def _why(row: Row, ours: float | None, compiled: float | None, eager: float | None) -> str:
    if "failure" in row:
        return f"not measured: {row['failure'][-1]}"
    if ours is None:
        reasons = [step["no_change"] for step in row.get("steps", ()) if step["no_change"]]
        said = (row.get("patch") or {}).get("tried") or next(iter(reasons), "")
        return said or f"no step was found, and the program {row.get('ending', 'ended')}"
    if eager_calls := _eager_calls(row):
        return eager_calls
    if compiled is not None and eager is not None and compiled > eager / ours:
        runs = {way: found.get("runs_us") for way, found in row["ways"].items()}
        changed, as_it_is = runs["graphdoctor"], runs["eager"]
        if min(changed) < max(as_it_is) and min(as_it_is) < max(changed):
            return f"not decided: runs took {_runs(as_it_is)} µs as it is, {_runs(changed)} with our diff"
        return "torch.compile is faster; it is not known yet why"
    return (
        "the step is a small part of its time" if eager is not None and ours > eager / 1.1 else ""
    )


def _steps(rows: list[Row]) -> Iterator[Cells]:
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row["program"], {})[row["way"]] = row
    for name, ways in found.items():
        us = {way: row["step_us"] for way, row in ways.items() if "step_us" in row}
        gains = {way: ways[way]["eager_us"] / us[way] for way in us}
        ours, hand = us.get("graphdoctor"), us.get("by hand")
        why = ""
        if ours is None:
            why = "no time was measured"
        elif hand is not None and hand / ours < _OF_HAND_MADE:
            why = f"{100 * hand / ours:.0f} % of the speed by hand: {ways['graphdoctor']['explain'].splitlines()[0]}"
        eager = next((row["eager_us"] for row in ways.values() if "eager_us" in row), None)
        shown = (
            f"{gains[w]:.2f}x" if w in gains else _NONE
            for w in ("graphdoctor", "by hand", "reduce-overhead")
        )
        yield name, _us(eager), *shown, why


def _us(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.0f}"


def _runs(us: list[float]) -> str:
    return f"{min(us):,.0f} to {max(us):,.0f}"


def _times(eager: float | None, fast: float | None) -> str:
    return _NONE if eager is None or fast is None else f"{eager / fast:.2f}x"
