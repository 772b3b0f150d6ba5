"""The steps that were measured on a GPU -> their recordings on the emulated device, kept in a folder.

Used by predictions.py. Samples are recorded with values, the larger workloads on shapes only; one that
cannot be recorded so, or whose recording ends early for want of values, is left out with its reason.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_in
from pathlib import Path
from typing import Any

import torch

from graphdoctor.estimate import Calls
from graphdoctor.pipeline import put_back
from graphdoctor.pipeline.setting import open_setting
from graphdoctor.pipeline.stages import study
from graphdoctor.record.place import place
from graphdoctor.record.without_values import without_values
from graphdoctor.strategies import STRATEGIES
from graphdoctor.strategies.evidence import Studied
from graphdoctor.strategies.strategy import Known, varying_shapes
from graphdoctor.target import resolve
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.recording import Iteration

ROOT = Path(__file__).resolve().parents[2]
# Their recordings on shapes only end where the host reads a value.
UNRECORDED = {
    "benchmarks/gpu/workloads/vision.py:mask_rcnn": "its proposals depend on values",
    "benchmarks/gpu/workloads/bert.py:gathered": "its masked positions depend on values",
}
OURS = ("whole", "split-step", "modules", "segments")
# What torchvision registers shape functions for when it is imported; none of them runs here.
_OF_TORCHVISION = (
    "_deform_conv2d_backward",
    "_ps_roi_align_backward",
    "_ps_roi_pool_backward",
    "_roi_align_backward",
    "_roi_pool_backward",
    "deform_conv2d",
    "nms",
    "ps_roi_align",
    "ps_roi_pool",
    "qnms",
    "qroi_align",
    "roi_align",
    "roi_pool",
)
_KEPT: list[Any] = []  # libraries of torch, which undo themselves when they are collected


@dataclass(frozen=True)
class Graphed:
    """What one strategy would put into graphs, and the calls that it makes."""

    regions: tuple[tuple[int, ...], ...]
    calls: Calls


@dataclass(frozen=True)
class Step:
    """One recorded step; `parts` is None where only regions of it can be captured."""

    case: str
    iteration: Iteration
    is_whole: bool
    regions: tuple[tuple[int, ...], ...]
    graphed: dict[str, Graphed]


def recorded(cases: Sequence[str], folder: Path) -> dict[str, Step]:
    """Each case's step, from the folder or newly recorded. Takes minutes for all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for case in dict.fromkeys(cases):
        if case in UNRECORDED:
            continue
        path = folder / (case.replace("/", "_").replace(":", "@") + ".pkl")
        if not path.exists():
            print(f"recording {case}", flush=True)
            path.write_bytes(pickle.dumps(_record(case)))
        found[case] = pickle.loads(path.read_bytes())
    return found


def _record(case: str) -> Step:
    has_values = case.startswith("sample_models/")
    if not has_values:
        _let_shapes_do()
    values: Any = "auto" if has_values else "none"
    options = AnalyzeOptions(device="emulated", gpu="h200", iterations=3, values=values)
    with open_setting(options, lambda doing: None) as setting:
        target = resolve(str(ROOT / case), mode=None, inputs=())
        if has_values:
            with put_back(target):
                return _step(case, study(place(target, setting.device), setting))
        setting = replace_in(setting, options=replace_in(options, strategies=()))
        device: Any = setting.device
        with (
            without_values(target, device) as given,
            put_back(given, setting.device.table),
        ):
            return _step(case, study(place(given, setting.device), setting))


def _step(case: str, studied: Studied) -> Step:
    iteration = studied.recording.captured[-1]
    target = studied.session.target
    known = Known(
        mode=target.mode,
        roots=target.roots,
        findings=studied.diagnosis.findings,
        safe_modules=studied.plan.safe_modules,
        iteration=iteration,
        varying=varying_shapes(studied.recording.captured),
    )
    worth = (planned for planned in studied.plan.regions if planned.region.worthwhile)
    regions = tuple(tuple(ops) for each in worth if (ops := each.ops_in(iteration.index)))
    return Step(case, iteration, studied.plan.whole, regions, dict(_graphed(known)))


def _graphed(known: Known) -> Iterator[tuple[str, Graphed]]:
    for strategy in STRATEGIES:
        if strategy.name not in OURS or strategy.reason_against(known):
            continue
        regions = strategy.regions(known)
        if regions is not None:
            yield strategy.name, Graphed(tuple(map(tuple, regions)), strategy.calls(known))


def _let_shapes_do() -> None:
    """What torch lacks for a step on shapes only, and a torchvision without its compiled operators.

    A fused optimizer writes where it is told and returns nothing, so that its shape function does nothing.
    """
    if _KEPT:
        return
    meta = torch.library.Library("aten", "IMPL", "Meta")
    meta.impl("_fused_adamw_.tensor_lr", lambda *args, **kwargs: None)
    vision = torch.library.Library("torchvision", "FRAGMENT")
    for name in _OF_TORCHVISION:
        if not hasattr(torch.ops.torchvision, name):
            vision.define(f"{name}(Tensor unused) -> Tensor")
    _KEPT.extend((meta, vision))
