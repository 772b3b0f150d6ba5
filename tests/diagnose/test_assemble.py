"""The report of a step that could not be run: nothing is known, and nothing is claimed."""

from __future__ import annotations

import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.diagnose.assemble import could_not_run
from graphdoctor.target import from_object


def test_of_a_step_that_could_not_run_nothing_is_counted_found_or_called_safe() -> None:
    with EmulatedDevice() as device:
        target = from_object(lambda data: data * 2.0, torch.ones(4))
        try:
            report = could_not_run(target, device, "no such kernel")
        finally:
            target.close()
    assert (report.verdict, report.reason) == ("unknown", "Not verified: no such kernel")
    assert report.limits == ("no such kernel",)
    assert (report.operators, report.iterations) == (0, 0)
    assert (report.estimate, report.measurement) == (None, None)
    assert not (report.findings or report.regions or report.safe_modules or report.captures)
    assert report.machine.device == "emulated"
