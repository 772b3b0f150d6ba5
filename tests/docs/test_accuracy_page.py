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
    text = beside_gpu(
        [about, *missed, *alarmed, {"family": "nn", "model": "bad", "not_built": "x"}]
    )
    assert "| nn | misses | inference | safe |" in text and "refused model.py:7" in text
    assert "| nn | alarms | inference | unsafe | GD101 model.py:9 |" in text
    assert "| nn | 1: bad |" in text
    assert "| nn | inference | 2 | 0 | 0 | 1 | 1 | 0 | 0 |" in text


def both(
    model: str, *, verdict: str, raw: str, place: str = "", rule: str = "", at: str = ""
) -> list[dict[str, Any]]:
    step = {"family": "nn", "model": model, "mode": "inference"}
    findings = [{"rule": rule, "place": at}] if rule else []
    said = {"verdict": verdict, "findings": findings, "reason": "why"}
    answer = {"raw": raw, "place": place, "error": ""}
    return [{**step, "device": "emulated", **said}, {**step, "device": "raw", **answer}]
