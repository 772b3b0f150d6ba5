"""An operator that a step runs only while it is captured has never run before: row A48."""

from __future__ import annotations

import torch

import graphdoctor


def test_an_operator_that_only_a_capture_runs_is_named() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return kernel(x) if torch.cuda.is_current_stream_capturing() else x * 2

    kernel = _opaque()
    report = graphdoctor.analyze(step, torch.randn(4), device="emulated", strategies=())
    (found,) = (text for text in report.limits if "runs only during capture" in text)
    assert found.startswith("coldtest.opaque")


def test_one_that_eager_runs_too_is_not() -> None:
    kernel = _opaque()
    report = graphdoctor.analyze(kernel, torch.randn(4), device="emulated", strategies=())
    assert not any("runs only during capture" in text for text in report.limits)


_LIBRARY: list[torch.library.Library] = []


def _opaque() -> torch._ops.OpOverloadPacket:
    """An operator with a kernel that nobody can look into, as an extension's."""
    if not _LIBRARY:
        library = torch.library.Library("coldtest", "FRAGMENT")
        library.define("opaque(Tensor x) -> Tensor")
        library.impl("opaque", lambda x: x * 2, "CPU")
        _LIBRARY.append(library)
    return torch.ops.coldtest.opaque
