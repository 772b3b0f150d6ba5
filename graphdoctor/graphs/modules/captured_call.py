"""What a graph of one call is made from, and what it can do once it is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from graphdoctor.graphs.modules.body import Body, tensors_of
from graphdoctor.graphs.modules.choices import Choices
from graphdoctor.graphs.modules.lane import Lane
from graphdoctor.graphs.modules.observe import Observed
from graphdoctor.target.state.clone import clone_inputs
from graphdoctor.target.target import Inputs


class Graph(Protocol):
    """A captured call. `is_free`: it can serve a call now."""

    @property
    def is_free(self) -> bool: ...

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any: ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ToCapture:
    """One call of a module, as a body and tensors at fixed addresses."""

    body: Body
    static: tuple[torch.Tensor, ...]
    observed: Observed
    choices: Choices
    lane: Lane

    @contextmanager
    def as_observed(self) -> Iterator[None]:
        """Grad mode as in the observed call, and no autocast: the body has its own.

        A backward pass runs outside autocast, as torch recommends, and so it is captured.
        """
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(bool(self.observed.signature[0])),
            torch.autocast("cuda", enabled=False),
        ):
            yield


def static_tensors(observed: Observed) -> tuple[torch.Tensor, ...]:
    """The observed call's tensors, each once, on memory that it shares with no other of them."""
    with torch.inference_mode(False):
        clones = (clone_inputs(Inputs((tensor,))) for tensor in tensors_of(observed.sample))
        return tuple(tensor for clone in clones for tensor in tensors_of(clone))
