"""What a graph of one call is made from, and what it can do once it is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from graphdoctor.graphed.body import Body, tensors_of
from graphdoctor.graphed.choices import Choices
from graphdoctor.graphed.lane import Lane
from graphdoctor.graphed.observe import Observed
from graphdoctor.target.clone import clone_inputs


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
        """Torch's switches as they were in the observed call.

        Autocast keeps no cast weights here: a graph casts them anew in each replay, since an
        optimizer changes them in between.
        """
        grad, autocast, dtype = self.observed.signature[:3]
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(bool(grad)),
            torch.autocast("cuda", dtype=dtype, enabled=bool(autocast), cache_enabled=False),  # type: ignore[arg-type]
        ):
            yield


def static_tensors(observed: Observed) -> tuple[torch.Tensor, ...]:
    """The observed call's tensors on memory of their own, in its order."""
    with torch.inference_mode(False):
        return tensors_of(clone_inputs(observed.sample))
