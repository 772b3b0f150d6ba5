"""The page of accuracy: what a verdict was worth, the GPU's word taken as the truth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

PAGES = Path(__file__).parents[2] / "benchmarks" / "pages"
if str(PAGES) not in sys.path:
    sys.path.append(str(PAGES))

from beside_gpu import beside_gpu, judgement  # noqa: E402


@pytest.mark.parametrize(
    ("verdict", "raw", "word"),
    [
        ("safe", "captured", "safe"),
        ("safe", "refused", "missed"),
        ("safe", "differs", "missed"),
        ("partly-safe", "refused", "found"),
        ("unsafe", "differs", "found"),
        ("partly-safe", "captured", "false alarm"),
        ("unknown", "captured", "not analyzed"),
        (None, "captured", "not analyzed"),
        (None, "does not run", "no GPU answer"),
        ("unknown", "does not run", "no GPU answer"),
        ("safe", "does not run", "no GPU answer"),
        ("safe", None, "no GPU answer"),
    ],
)
def test_a_verdict_beside_a_capture(verdict: str | None, raw: str | None, word: str) -> None:
    emulated = {"verdict": verdict} if verdict else {"crash": "no end within 40 s"}
    assert judgement(emulated, {"raw": raw} if raw else {}) == word


def test_each_disagreement_is_on_the_page_with_its_lines() -> None:
    about = {"date": "2026-01-01", "torch": "2.11.0", "python": "3.12.3"}
    missed = both("misses", verdict="safe", raw="refused", place="model.py:7")
    alarmed = both("alarms", verdict="unsafe", raw="captured", rule="GD101", at="model.py:9")
    bad = {"family": "nn", "model": "bad", "not_built": "OSError: no network"}
    text = beside_gpu([about, *missed, *alarmed, bad], [])
    assert "| nn | misses | inference | safe |" in text and "refused model.py:7" in text
    assert "| nn | alarms | inference | unsafe | GD101 model.py:9 |" in text
    assert "| nn | it needs a download | 1: bad |" in text
    assert "| nn | inference | 2 | 0 | 0 | 1 | 0 | 1 | 0 | 0 |" in text


def test_a_step_that_the_run_does_not_decide_is_no_miss_and_one_that_is_found_stays_found() -> None:
    about = {"date": "2026-01-01", "torch": "2.11.0", "python": "3.12.3"}
    rounding = both("rounds", verdict="safe", raw="differs")
    found = both("wrong", verdict="unsafe", raw="differs", rule="GD209", at="model.py:9")
    step = {"family": "nn", "mode": "inference"}
    read = [{**step, "model": name, "undecided": "rounding"} for name in ("rounds", "wrong")]
    text = beside_gpu([about, *rounding, *found], read)
    assert "| nn | inference | 2 | 0 | 1 | 0 | 1 | 0 | 0 | 0 |" in text
    assert "| nn | rounds | inference |  | rounding |" in text


def both(
    model: str, *, verdict: str, raw: str, place: str = "", rule: str = "", at: str = ""
) -> list[dict[str, Any]]:
    step = {"family": "nn", "model": model, "mode": "inference"}
    findings = [{"rule": rule, "place": at}] if rule else []
    said = {"verdict": verdict, "findings": findings, "reason": "why"}
    answer = {"raw": raw, "place": place, "error": ""}
    return [{**step, "device": "emulated", **said}, {**step, "device": "raw", **answer}]


def test_the_line_of_a_refusal_counts_only_where_the_run_kept_one_of_the_model() -> None:
    about = {"date": "2026-01-01", "torch": "2.11.0", "python": "3.12.3"}
    refused = {"verdict": "unsafe", "raw": "refused", "rule": "GD101", "at": "nets/model.py:9"}
    kept = both("kept", **refused, place="model.py:9")
    lost = both("lost", **refused, place="zoo.py:72")
    text = beside_gpu([about, *kept, *lost], [])
    assert "Of the 2 steps" in text and "for 1: it is among the findings of 1 of them" in text
    assert "is not known" in beside_gpu([about, *lost], [])
