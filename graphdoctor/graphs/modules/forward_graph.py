"""A call without a backward pass -> a CUDA graph of the forward, with tensors that it reads and fills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphdoctor.graphs.capture import device_usable_after_failure
from graphdoctor.graphs.modules.captured_call import ToCapture


class ForwardGraph:
    """One graph of a forward. It can serve the next call as soon as this one has returned."""

    is_free = True

    def __init__(self, call: ToCapture) -> None:
        self._static = call.static
        self._lane = call.lane
        self._owns_outputs = call.choices.owns_outputs
        self._graph: Any = torch.cuda.CUDAGraph()
        with call.as_observed(), device_usable_after_failure(self._graph):
            self._outputs = self._captured(call)
        assert call.observed.returned is not None
        self._filled = call.observed.returned.filled

    def _captured(self, call: ToCapture) -> tuple[torch.Tensor, ...]:
        side: Any = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(call.choices.warm_ups):
                call.body(*self._static)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        with torch.cuda.graph(
            self._graph,
            # Others may write over outputs that stay in the graph's memory, if they share it.
            pool=call.lane.pool if self._owns_outputs else None,
            stream=side,
            capture_error_mode="thread_local",
        ):
            found = call.body(*self._static)
        return tuple(tensor.detach() for tensor in found)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run the forward on these tensors, which are as the captured call's."""
        with torch.no_grad():
            self._lane.enter()
            for static, fresh in zip(self._static, tensors, strict=True):
                static.copy_(fresh)
            self._graph.replay()
            found = self._outputs
            if self._owns_outputs:
                found = tuple(tensor.clone() for tensor in found)
        return self._filled(found)

    def release(self) -> None:
        """Give the graph and its memory back."""
        self._graph.reset()
        self._outputs = self._static = ()
