"""One strategy on one workload, in a process of its own: prepared beside others, timed alone.

    python benchmarks/gpu/row.py SPEC STRATEGY OUT.json

Builds, captures and verifies it, prints "ready", waits for a line on its input, times it, and writes the
row with what the analysis said of the step. Where there is nothing to time it does not wait.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from cases import COMPILING

from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.pipeline import Setting, open_setting, put_back, study
from graphdoctor.record.place import place
from graphdoctor.strategies import STRATEGIES
from graphdoctor.strategies.foresee import foresee
from graphdoctor.strategies.strategy import Known, varying_shapes
from graphdoctor.strategies.trial import Terms, carry_out
from graphdoctor.target import Target, resolve
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.speed import StrategyOutcome

MEASURE_S = 1.5  # six pairs of blocks at least


def main() -> None:
    spec, name, out = sys.argv[1:]
    lock = Path(out).parent / f"{spec.replace('/', '_')}.lock" if name in COMPILING else None
    with open_setting(AnalyzeOptions(gpu="h200"), lambda doing: None) as setting:
        target = resolve(spec, mode=None, inputs=())
        with put_back(target):
            row, diagnosis = _row(place(target, setting.device), name, setting, lock)
    found = {
        "findings": [[each.rule, each.message[:200]] for each in diagnosis.findings],
        "row": msgspec.to_builtins(row),
    }
    Path(out).write_bytes(msgspec.json.encode(found))


def _row(
    target: Target, name: str, setting: Setting, lock: Path | None
) -> tuple[StrategyOutcome, Diagnosis]:
    studied = study(target, setting)
    strategy = next(one for one in STRATEGIES if one.name == name)
    known = Known(
        mode=target.mode,
        roots=target.roots,
        findings=studied.diagnosis.findings,
        safe_modules=studied.plan.safe_modules,
        iteration=studied.recording.captured[-1],
        varying=varying_shapes(studied.recording.captured),
        ran=studied.ran,
    )
    row = foresee(strategy, known, setting.profile)
    if row.status == "planned":
        with behind_the_first(lock) as let_others_go_on:

            def await_turn() -> None:
                let_others_go_on()
                print("ready", flush=True)
                sys.stdin.readline()

            terms = Terms(setting.profile, measure_s=MEASURE_S, await_turn=await_turn)
            row = carry_out(row, strategy, studied.session, known, terms=terms)
    return msgspec.structs.replace(row, code="", plan=""), studied.diagnosis


@contextmanager
def behind_the_first(lock: Path | None) -> Iterator[Callable[[], None]]:
    """Wait for the first process that took the lock; all others then go on side by side.

    The first calls what it is given once it is prepared; should it end before, that lets them go on too.
    """
    if lock is None:
        yield lambda: None
        return
    with lock.open("w", encoding="utf-8") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(held, fcntl.LOCK_SH)
        yield lambda: fcntl.flock(held, fcntl.LOCK_UN)


if __name__ == "__main__":
    main()
