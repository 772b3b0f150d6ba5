"""One strategy on one workload, in a process of its own: prepared beside others, timed alone.

    python benchmarks/gpu/row.py SPEC STRATEGY OUT.json

Builds, captures and verifies it, prints "ready", waits for a line on its input, times it, and writes the
row with what the analysis said of the step. Where there is nothing to time it does not wait.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.pipeline import Setting, open_setting, put_back, study
from graphdoctor.record.place import place
from graphdoctor.strategies import STRATEGIES
from graphdoctor.strategies.foresee import foresee
from graphdoctor.strategies.strategy import Known
from graphdoctor.strategies.trial import Terms, carry_out
from graphdoctor.target import Target, resolve
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import StrategyOutcome

MEASURE_S = 1.5  # six pairs of blocks at least


def main() -> None:
    spec, name, out = sys.argv[1:]
    with open_setting(AnalyzeOptions(gpu="h200"), lambda doing: None) as setting:
        target = resolve(spec, mode=None, inputs=())
        with put_back(target):
            row, diagnosis = _row(place(target, setting.device), name, setting)
    found = {
        "findings": [[each.rule, each.message[:200]] for each in diagnosis.findings],
        "row": msgspec.to_builtins(row),
    }
    Path(out).write_bytes(msgspec.json.encode(found))


def _row(target: Target, name: str, setting: Setting) -> tuple[StrategyOutcome, Diagnosis]:
    studied = study(target, setting)
    strategy = next(one for one in STRATEGIES if one.name == name)
    known = Known(
        mode=target.mode,
        roots=target.roots,
        findings=studied.diagnosis.findings,
        safe_modules=studied.plan.safe_modules,
        iteration=studied.recording.captured[-1],
        ran=studied.ran,
    )
    row = foresee(strategy, known, setting.profile)
    if row.status == "planned":
        terms = Terms(setting.profile, measure_s=MEASURE_S, await_turn=_await_turn)
        row = carry_out(row, strategy, studied.session, known, terms=terms)
    return msgspec.structs.replace(row, code="", plan=""), studied.diagnosis


def _await_turn() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
