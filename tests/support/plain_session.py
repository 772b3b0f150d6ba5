"""A step of plain CPU tensors -> its session, for what needs no device, real or emulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphdoctor.device.observe.meeting import ALONE
from graphdoctor.record.session import Session, prepare
from graphdoctor.strategies.strategy import Known
from graphdoctor.target import Inputs, Target
from graphdoctor.target.roots import roots_of
from graphdoctor.target.state.saved_tensor import UsersMemory
from graphdoctor.values.recording import Iteration


class PlainDevice(UsersMemory):
    """The CPU, where nothing is emulated."""

    kind = "cuda"
    has_values = True
    was_asked = True
    meeting = ALONE

    @property
    def table(self) -> PlainDevice:
        """It is its own: all that is asked is where a tensor lies."""
        return self

    def is_cuda(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    @contextmanager
    def observed_by(self, observer: object) -> Iterator[None]:
        yield

    def leave_default_stream(self) -> None:
        pass

    @contextmanager
    def assuming_capture(self) -> Iterator[None]:
        yield


def session_of(step: Any) -> tuple[Session, Known]:
    torch.manual_seed(0)
    target = Target(
        name="step",
        file="model.py",
        entry="step",
        mode="training",
        step=step,
        fresh_inputs=lambda: Inputs((torch.randn(6, 4),)),
        roots=roots_of(step),
    )
    device: Any = PlainDevice()
    session = prepare(target, device, iterations=3)
    iteration = Iteration(0, True, (), (), (), (), (), ())
    return session, Known("training", target.roots, (), (), iteration)
