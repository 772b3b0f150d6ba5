"""Where and how a step is studied: the device, the options, and what is put back afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from graphdoctor.device.emulated import entered
from graphdoctor.device.observe.known_results import results_known
from graphdoctor.device.open import AnyDevice, open_device
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.hosts import profile_beside, profile_for
from graphdoctor.record.without_values import memory_for_results
from graphdoctor.target import Snapshot, Target, snapshot
from graphdoctor.target.state.saved_tensor import USERS_MEMORY, Memory
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import Report, StageTime

Progress = Callable[[str], None]
Show = Callable[[Report], None]
_DEFAULTS = AnalyzeOptions()


def silent(doing: str) -> None:
    """Report no progress."""


def unseen(report: Report) -> None:
    """Show no report before it is complete."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how a step is studied, and where progress is reported.

    `show` gets the report before it is complete: with the verdict and findings, once before each strategy.
    `begun` has the stages that began, each with its beginning by `time.monotonic()`.
    """

    device: AnyDevice
    options: AnalyzeOptions = _DEFAULTS
    progress: Progress = silent
    show: Show = unseen
    deadline_s: float | None = None  # by time.monotonic(); None: strategies have their budget alone
    begun: list[tuple[str, float]] = field(default_factory=list)

    def begin(self, stage: str) -> None:
        """Report the stage as progress and note when it began."""
        self.begun.append((stage, time.monotonic()))
        self.progress(stage)

    def stage_times(self) -> tuple[StageTime, ...]:
        """The stages in time order, the last one until now; () if the options do not ask for them."""
        if not self.options.times_stages:
            return ()
        ends = [*(began for _, began in self.begun[1:]), time.monotonic()]
        return tuple(
            StageTime(stage, end - began)
            for (stage, began), end in zip(self.begun, ends, strict=True)
        )

    @property
    def profile(self) -> DeviceProfile:
        """The profile of the GPU that predictions are for, the one that is there, and of the host that feeds it."""
        options = self.options
        if self.device.kind == "emulated":
            return profile_for(options.gpu, options.host)
        return profile_beside(torch.cuda.get_device_name(), options.gpu, options.host)


@contextmanager
def open_setting(
    options: AnalyzeOptions, progress: Progress, show: Show = unseen
) -> Iterator[Setting]:
    """Inside the block, code that says "cuda" runs on the device of the options."""
    profile = profile_for(options.gpu, options.host)  # raises for an unknown name at once
    is_callers = entered() is not None
    with generators_kept(), open_device(options.device, profile) as device:
        device.table.keeps_addresses = is_callers
        yield Setting(device, options, progress, show)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore random generators and torch's global settings, whatever the user's code did to them."""
    before = snapshot({})
    try:
        yield
    finally:
        before.restore()


@contextmanager
def put_back(target: Target, memory: Memory = USERS_MEMORY) -> Iterator[Snapshot]:
    """Inside the block the target may run; afterwards its state is restored and it is closed."""
    try:
        before = snapshot(target.roots, memory=memory)
        try:
            with results_known(memory_for_results(target)):
                yield before
        finally:
            before.restore()
    finally:
        target.close()
