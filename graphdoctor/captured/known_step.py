"""The fast path of a captured step: a function that replays calls of one form, which a graph has served before.

Whatever can be decided when such a call becomes known is decided then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from graphdoctor.captured.known_call import NOT_KNOWN
from graphdoctor.captured.step_arguments import ChangingArguments
from graphdoctor.captured.step_gradients import StartingGradients, check_of_gradients
from graphdoctor.captured.step_graph import StepGraph
from graphdoctor.captured.step_optimizers import Numbers
from graphdoctor.captured.step_python import PythonPart
from graphdoctor.graphs.calls import CallForm

if TYPE_CHECKING:
    from graphdoctor.captured.step import CapturedStep


KnownStep = Callable[["CapturedStep", tuple[Any, ...], dict[str, Any]], object]


def known_step(
    form: CallForm,
    graph: StepGraph,
    *,
    missing: tuple[bool, ...],
    ways: object,
    numbers: Numbers,
    gradients: StartingGradients,
    changing: ChangingArguments | None,
    python: PythonPart | None,
    has_results: bool,
) -> KnownStep:
    """A function that replays calls of this form in the current gradient mode, or returns `NOT_KNOWN`.

    The graph has just been replayed. `missing` are the gradients that such a call lacks, `ways` what its Python
    decides, and `changing` has the arguments that become tensors.
    """
    check, is_plain, tensors_of = form
    is_grad_enabled, is_inference = torch.is_grad_enabled, torch.is_inference_mode_enabled
    grad, inference = is_grad_enabled(), is_inference()
    is_same, run, fill = graph.known_check(), graph.run, numbers.fill if numbers.tensors else None
    # The gradients that the last replay left are looked at in one call.
    is_missing_left = not missing or gradients.missing_in(graph.gradients) == missing
    are_left: Callable[[], bool] = lambda: False  # noqa: E731
    if is_missing_left and graph.keeps_gradients:
        are_left = check_of_gradients(graph.gradients)
    is_simple = python is None and not has_results and not graph.read_results

    def replay(owner: CapturedStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        seen = None
        try:
            if changing is not None:
                args, kwargs = changing.with_tensors(args, kwargs)
            tensors: Any = args if is_plain and not kwargs else tensors_of(args, kwargs)
            if tensors is None or not check(*tensors):
                return NOT_KNOWN
            if is_grad_enabled() is not grad or is_inference() is not inference:
                return NOT_KNOWN
            has_gradients = are_left()
            if not has_gradients and missing and gradients.are_missing() != missing:
                return NOT_KNOWN
            if python is None:
                if not is_same():
                    return NOT_KNOWN
            else:
                seen = owner.seen_python(args, kwargs)
                if seen is None or seen.ways != ways:
                    return NOT_KNOWN
                if not python.with_numbers(graph.numbers, is_same, args, kwargs):
                    return NOT_KNOWN
        except Exception:  # arguments that are no tensors; what the step's Python raises
            return NOT_KNOWN
        if not is_simple:
            return owner.replay(graph, tensors, seen, args, kwargs)
        if fill is not None:
            fill()
        return run(tensors, has_gradients=has_gradients)

    return replay
