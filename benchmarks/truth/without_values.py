"""Architectures of transformers, small, with values and without -> where the two diagnoses differ.

python benchmarks/truth/without_values.py [--only bert,gpt2] [--meta] [--out FILE]

`--meta` makes the weights on the meta device for the analysis without values; else the same weights serve
both. A training step then has its inputs there, too. A line of JSON for each step; in the end how many agree.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from typing import Any

import torch
from asking import training
from hf_models import cases
from zoo import Built, Case

import graphdoctor
from graphdoctor.values.report import Report

NAMES = (
    "bert", "gpt2", "llama", "mixtral", "t5", "vit", "whisper", "detr", "mamba", "swin", "phi", "gemma",
    "bart", "distilbert", "clip", "wav2vec2",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=lambda text: tuple(text.split(",")), default=NAMES)
    parser.add_argument("--meta", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    lines = []
    for case in cases():
        if case.model in args.only:
            for line in examined(case, on_meta=args.meta):
                lines.append(line)
                print(json.dumps(line), flush=True)
    steps = [line for line in lines if "agrees" in line]
    print(f"{sum(line['agrees'] for line in steps)} of {len(steps)} steps agree")
    if args.out:
        with open(args.out, "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def examined(case: Case, *, on_meta: bool) -> Iterator[dict[str, Any]]:
    for mode in ("inference", "training"):
        try:
            built = case.build()
        except Exception as error:  # a library that is not there, say
            yield {"model": case.model, "not_built": str(error)[:300]}
            return
        if mode == "training" and built.fresh_with_loss is None:
            continue
        with_values = seen(built, mode, "real")
        if on_meta:
            built.model.to("meta")
            if hasattr(built.model, "tie_weights"):
                built.model.tie_weights()  # moving them to the meta device makes two of one
        without = seen(built, mode, "none")
        agrees = all(
            with_values[key] == without[key] for key in ("findings", "operators", "launches")
        )
        yield {
            "model": case.model,
            "mode": mode,
            "agrees": agrees and fits(with_values["verdict"], without["verdict"]),
            "real": with_values,
            "none": without,
        }


def fits(real: str, none: str) -> bool:
    """Without values nothing is safe, and nothing partly."""
    return none == ("unsafe" if real == "unsafe" else "unknown")


def seen(built: Built, mode: str, values: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    if mode == "training":
        made = training(built, next(built.model.parameters()).device.type)
        subject: Any = lambda: made  # noqa: E731
    else:
        built.model.eval()
        subject = lambda: (built.model, built.fresh)  # noqa: E731
    try:
        report = graphdoctor.analyze(
            subject, device="emulated", strategies=(), iterations=2, values=values
        )
    except Exception as error:
        return {
            "verdict": type(error).__name__,
            "reason": str(error)[:300],
            "findings": [],
            "operators": 0,
            "launches": 0,
        }
    return summary(report)


def summary(report: Report) -> dict[str, Any]:
    places = {
        f"{finding.rule} {os.path.basename(finding.location.file)}:{finding.location.line}"
        if finding.location
        else finding.rule
        for finding in report.findings
    }
    return {
        "verdict": report.verdict,
        "reason": report.reason[:300],
        "findings": sorted(places),
        "operators": report.operators,
        "launches": report.estimate.launches if report.estimate else 0,
        "assumed": [
            limit
            for limit in report.limits
            if limit.startswith(("Assumed", "The step was followed"))
        ],
    }


if __name__ == "__main__":
    main()
