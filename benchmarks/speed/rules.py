"""CPU time that the rules take over recordings of sample models. Prints ms for each 10,000 operators of one step.

A recording has several iterations of the step, run both ways; the rules walk all of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.record import prepare, record
from graphdoctor.record.place import place
from graphdoctor.rules import ALL_RULES
from graphdoctor.rules.rule import RecordingRule
from graphdoctor.target import resolve
from graphdoctor.values.recording import Recording

MODELS = Path(__file__).parents[2] / "sample_models"
NAMES = ("bert_mlm", "resnet50", "adam_training", "moe", "scheduled_scale")
RULES = [rule for rule in ALL_RULES if issubclass(rule, RecordingRule)]


def recorded(name: str, iterations: int) -> Recording:
    with EmulatedDevice() as device:
        target = place(resolve(str(MODELS / f"{name}.py"), mode=None, inputs=()), device)
        try:
            session = prepare(target, device, iterations=iterations)
            return record(session, progress=lambda doing: None)
        finally:
            target.close()


def median_ms(work: Callable[[], object], times: int) -> float:
    spent = []
    for _ in range(times):
        begun = time.process_time()
        work()
        spent.append((time.process_time() - begun) * 1e3)
    return statistics.median(spent)


def copy_of(recording: Recording) -> Recording:
    """Equal, and another object: what rules share is kept by recording."""
    return Recording(**{name: getattr(recording, name) for name in recording.__struct_fields__})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{len(RULES)} rules, {options.iterations} iterations, median of {options.times}")
    print("model             operators  findings   all rules  per 10,000   dearest rules")
    for name in NAMES:
        recording = recorded(name, options.iterations)
        operators = len(recording.captured[-1].ops)
        findings = len(diagnose(recording).findings)
        per_step = 1e4 / operators
        whole = median_ms(lambda r=recording: diagnose(copy_of(r)), options.times)
        alone = {
            rule.id: median_ms(lambda r=recording, u=rule: list(u().check(copy_of(r))), 3)
            for rule in RULES
        }
        dearest = sorted(alone, key=alone.__getitem__, reverse=True)[:3]
        shown = ", ".join(f"{rule} {alone[rule] * per_step:.0f}" for rule in dearest)
        print(
            f"{name:<16} {operators:>10,} {findings:>9} {whole:>8.1f} ms {whole * per_step:>8.0f} ms"
            f"   {shown}"
        )


if __name__ == "__main__":
    main()
