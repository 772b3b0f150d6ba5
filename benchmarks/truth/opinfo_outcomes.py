"""Outcomes of op_db's samples -> the table of verdicts, and where rules and machine disagree."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

VERDICTS = ("safe", "nothing to capture", "unsafe", "unknown", "limit", "not run by torch", "crash")


@dataclass(frozen=True)
class Outcome:
    """What came of one sample. `refused` and `hazard`: what the machine and what the rules say."""

    entry: str
    sample: int
    verdict: str
    reason: str
    rules: tuple[str, ...] = ()
    refused: bool = False
    fallback: bool = False

    @property
    def disagreement(self) -> str | None:
        """Where the rules and the emulated machine say different things about a capture."""
        hazard = any(rule.startswith("GD1") for rule in self.rules)
        if self.verdict not in ("safe", "unsafe", "unknown") or hazard == self.refused:
            return None
        return "missed by the rules" if self.refused else "a false alarm of the rules"


def print_table(outcomes: Sequence[Outcome], entries: int, took_s: float) -> None:
    import torch

    today = datetime.date.today().isoformat()
    print(
        f"op_db of torch {torch.__version__}, {today}: {entries} entries, {len(outcomes)} samples,"
    )
    print(f"in {took_s:.0f} s\n")
    worst: dict[str, str] = {}
    for outcome in outcomes:
        before = worst.get(outcome.entry, VERDICTS[0])
        worst[outcome.entry] = max(before, outcome.verdict, key=VERDICTS.index)
    of_entries, of_samples = Counter(worst.values()), Counter(o.verdict for o in outcomes)
    print(f"{'verdict':<18}{'entries':>9}{'samples':>9}   (an entry counts as its worst sample)")
    for verdict in VERDICTS:
        print(f"{verdict:<18}{of_entries[verdict]:>9}{of_samples[verdict]:>9}")
    fallbacks = {o.entry for o in outcomes if o.fallback}
    print(f"\nentries with an operator that fell back: {len(fallbacks)}")
    for verdict in VERDICTS[3:]:
        _print_reasons(verdict, [o for o in outcomes if o.verdict == verdict])
    for kind in ("missed by the rules", "a false alarm of the rules"):
        _print_reasons(kind, [o for o in outcomes if o.disagreement == kind])
    wrong = [o for o in outcomes if o.verdict == "unsafe" and not o.refused and not o.rules]
    _print_reasons("replays differ without a finding", wrong)


def _print_reasons(title: str, outcomes: Sequence[Outcome]) -> None:
    if not outcomes:
        return
    reasons: dict[str, dict[str, None]] = defaultdict(dict)
    for outcome in outcomes:
        reasons[outcome.reason][f"{outcome.entry}[{outcome.sample}]"] = None
    print(f"\n{title}:")
    for reason, where in sorted(reasons.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(list(where)[:4])
        print(f"  {len(where):>4} x {reason}\n         {shown}")
