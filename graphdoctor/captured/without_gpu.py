"""A model on a machine without a GPU -> the plan to run it eagerly, with what an emulated GPU says."""

from __future__ import annotations

import torch

from graphdoctor.captured.plan import CapturePlan
from graphdoctor.pipeline import analyze
from graphdoctor.target import Inputs
from graphdoctor.values.errors import GraphDoctorError

_NO_GPU = "there is no GPU here that torch can use"


def plan_without_gpu(model: torch.nn.Module, inputs: Inputs) -> CapturePlan:
    """Nothing is captured; the verdict is an emulated analysis's, which changes nothing."""
    try:
        report = analyze(model, *inputs.args, device="emulated", **inputs.kwargs)  # type: ignore[arg-type]
    except GraphDoctorError as error:
        return CapturePlan("eager", obstacles=(_NO_GPU, f"an emulated GPU could not tell: {error}"))
    says = f"an emulated GPU says {report.verdict}: {report.reason}"
    return CapturePlan("eager", launches=0, obstacles=(_NO_GPU, says))
