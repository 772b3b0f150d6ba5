"""A built model, a mode and who is asked -> what graphdoctor, CUDA, dynamo or torch.export says of the step."""

from __future__ import annotations

import linecache
import random
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from dynamo_breaks import breaks
from export_refusals import exported
from raw_capture import attempt
from zoo import Built, Case, Inputs

import graphdoctor
from graphdoctor.values.captures import outcome_of_whole_step
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.finding import Finding
from graphdoctor.values.report import Report

ASKING = {"raw": attempt, "dynamo": breaks, "export": exported}
TRACERS = ("dynamo", "export")  # others' tools: on the CPU, and no word about memory or streams
DEVICES = ("emulated", "cuda", *ASKING)


def build(case: Case) -> tuple[Built | None, dict[str, Any]]:
    """The case's model, the same each time, and what is said of it in each of its lines."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    begun = time.perf_counter()
    try:
        built = case.build()
    except Exception as error:
        return None, {"not_built": f"{type(error).__name__}: {error}"[:300]}
    line: dict[str, Any] = {"parameters": built.parameters, "inputs": built.inputs}
    return built, line | {"build_s": round(time.perf_counter() - begun, 2)}


def asked(built: Built, *, mode: str, device: str) -> dict[str, Any]:
    """The answer, or why there is none, and the seconds that it took."""
    begun = time.perf_counter()
    answer = _answer(_target(built, mode=mode, device=device), device)
    return answer | {"analyze_s": round(time.perf_counter() - begun, 2)}


def _answer(target: Callable[[], Any], device: Any) -> dict[str, Any]:
    if device in ASKING:
        return ASKING[device](target())
    try:
        return summary(graphdoctor.analyze(target, device=device, strategies=()))
    except GraphDoctorError as error:
        return {"refused": f"{type(error).__name__}: {error}"[:600]}
    except Exception as error:
        trace = traceback.format_exc()[-3000:]
        return {"raised": f"{type(error).__name__}: {error}"[:400], "trace": trace}


def _target(built: Built, *, mode: str, device: str) -> Callable[[], Any]:
    if mode == "training":
        return lambda: training(built, "cpu" if device in TRACERS else "cuda")
    fresh = built.fresh

    def inputs() -> Inputs:
        return fresh()

    return lambda: (built.model, inputs)


def training(built: Built, place: str) -> SimpleNamespace:
    """Forward, backward and an SGD step in training mode, on the model's own loss."""
    model = built.model.train().to(place)
    away_from_zero(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(**inputs: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = built.loss(model, inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    def fresh() -> Inputs:
        assert built.fresh_with_loss is not None
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda each: each.to(place), built.fresh_with_loss()
        )

    return SimpleNamespace(step=step, inputs=fresh, state={"model": model, "optimizer": optimizer})


def away_from_zero(model: torch.nn.Module) -> None:
    """Give parameters that begin at zero other values, as training would.

    Some have no gradient but its rounding, such as the bias of attention's keys, which the softmax
    takes out again. After a step from zero they would hold nothing else, and two sums of the same
    numbers in another order would be called different.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and not parameter.any():
                parameter.normal_(std=0.02)


def summary(report: Report) -> dict[str, Any]:
    whole = outcome_of_whole_step(report.captures)
    verification = whole.verification if whole else None
    return {
        "verdict": report.verdict,
        "reason": report.reason,
        "operators": report.operators,
        "findings": [described(finding) for finding in report.findings],
        "whole_step": whole.status if whole else None,
        "refusal": whole.reason if whole else "",
        "verified": verification.status if verification else None,
        "verified_why": verification.reason if verification else "",
        "differences": [f"{d.tensor}: {d.detail}" for d in verification.differences][:3]
        if verification
        else [],
        "limits": report.limits,
    }


def described(finding: Finding) -> dict[str, Any]:
    place = finding.location
    return {
        "rule": finding.rule,
        "place": f"{shortened(place.file)}:{place.line}" if place else "",
        "code": linecache.getline(place.file, place.line).strip() if place else "",
        "count": finding.count,
        "phase": finding.phase,
        "operator": finding.operator,
        "certainty": finding.certainty,
        "message": finding.message,
    }


def shortened(file: str) -> str:
    """A path from the package on, so that tables of two machines are alike."""
    _, found, rest = file.rpartition("site-packages/")
    return rest if found else Path(file).name
