"""Run a step and note each module's calls: arguments, results, and why a call cannot be captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from graphdoctor.graphs.calls import Nesting, Unwatchable, signature
from graphdoctor.graphs.calls.outputs import kind_of, tensors_in
from graphdoctor.graphs.calls.signature import is_faithful
from graphdoctor.graphs.compare import has_same_bits
from graphdoctor.graphs.guards import Modes
from graphdoctor.graphs.tensor_layouts import wants_gradient
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.saved_tensor import version_of
from graphdoctor.target.state.snapshot import named_state, named_tensors
from graphdoctor.target.target import Inputs


class Mode(NamedTuple):
    """Torch's switches that a graph is chosen by; the others have to be as they were."""

    grad: bool
    autocast: bool
    dtype: torch.dtype | None

    def difference(self, captured: Mode) -> str:
        """Which of them is another than at the capture, in a sentence; "" where none is."""
        names = ("grad mode", "autocast", "autocast's dtype")
        for name, before, now in zip(names, captured, self, strict=True):
            if before != now:
                return f"{name} changed from {before} to {now}"
        return ""


class Signature(NamedTuple):
    """What two calls of a module share when one graph serves both; hashable."""

    mode: Mode
    key: tuple[object, ...]
    wanted: tuple[bool, ...]

    @property
    def repeats(self) -> object:
        """Whether some argument is given twice."""
        return self.key[-1]


def signature_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Signature, list[torch.Tensor]]:
    """Of a call that happens now, with its tensors in order. Raises `Unwatchable`."""
    key, tensors = signature(args, kwargs)
    grad, autocast = torch.is_grad_enabled(), torch.is_autocast_enabled("cuda")
    mode = Mode(grad, autocast, torch.get_autocast_dtype("cuda") if autocast else None)
    return Signature(mode, key, tuple(map(wants_gradient, tensors)) if grad else ()), tensors


@dataclass
class Observed:
    """The calls of one module with one signature.

    `sample` is the first of them, on memory of its own, and `returned` how its outputs are nested.
    `at_once` is how many of them waited for their backward pass at the same time;
    `wants_gradients`: some output hangs on autograd. `given` are the outputs, by position, for which
    a gradient came; None where no backward pass was seen. `reason` says why no graph can serve them.
    """

    mode: Mode
    sample: Inputs
    wants_gradients: bool = False
    at_once: int = 0
    waiting: int = 0
    returned: Nesting | None = None
    given: set[int] | None = None
    reason: str = ""


@dataclass
class Observations:
    """All calls of one module, by signature."""

    calls: dict[Signature, Observed] = field(default_factory=dict)


def observe(
    modules: Mapping[str, torch.nn.Module], run: Callable[[], object], modes: Modes
) -> dict[str, Observations]:
    """Watch the modules while `run` calls them. They must not contain each other.

    No graph can serve calls under other `modes` than those.
    """
    seen = {path: Observations() for path in modules}
    with ExitStack() as stack:
        for path, module in modules.items():
            watching = partial(_watched_call, module, seen[path], modes)
            stack.enter_context(swapped_forward(module, watching))
        run()
    return seen


def _watched_call(
    module: torch.nn.Module,
    seen: Observations,
    modes: Modes,
    forward: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    try:
        signature, tensors = signature_of(args, kwargs)
    except Unwatchable as error:
        unknown = Mode(torch.is_grad_enabled(), autocast=False, dtype=None)
        seen.calls[Signature(unknown, (), ())] = Observed(unknown, Inputs(), reason=str(error))
        return forward(*args, **kwargs)
    call = seen.calls.get(signature)
    if call is None:
        call = Observed(signature.mode, clone_inputs(Inputs(args, kwargs)))
        call.reason = (
            modes.difference()
            or _reason_in_sample(signature, tensors, call.sample)
            or _reason_in_arguments(module, tensors)
        )
        seen.calls[signature] = call
    with _watching_state(module, tensors, call):
        outputs = forward(*args, **kwargs)
    _follow(call, module, tensors, outputs)
    return outputs


def _reason_in_sample(given: Signature, tensors: list[torch.Tensor], sample: Inputs) -> str:
    """The sample has to be the same call, with every tensor of it on memory of its own."""
    try:
        is_like = is_faithful(given.key, tensors, sample)
    except Unwatchable as error:
        return str(error)
    return "" if is_like else "its arguments are nested in a way that cannot be copied"


def _reason_in_arguments(module: torch.nn.Module, tensors: list[torch.Tensor]) -> str:
    own = memory_of(named_tensors({"module": module}).values())
    for tensor in tensors:
        if not tensor.is_cuda:
            return "an argument is a tensor on the CPU, whose values a graph would freeze"
        if tensor.layout != torch.strided or tensor.is_nested:
            return "an argument is a tensor that is not strided"
        if not isinstance(tensor, torch.nn.Parameter) and memory_of([tensor]) & own:
            return "an argument is the module's own state"
    return ""


@contextmanager
def _watching_state(
    module: torch.nn.Module, given: list[torch.Tensor], call: Observed
) -> Iterator[None]:
    """Note what a forward changes that a replay would not: attributes, tensors' identity, inputs."""
    if call.reason:
        yield
        return
    tensors, values = named_state({"module": module})
    versions = [version_of(tensor) for tensor in given]
    copies = [tensor.detach().clone() for tensor in given]
    yield
    tensors_now, values_now = named_state({"module": module})
    call.reason = call.reason or (
        _changed_value(values, values_now)
        or _changed_tensor(tensors, tensors_now)
        or _written_input(given, versions, copies)
    )


def _changed_value(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    for path in [*before, *(path for path in after if path not in before)]:
        was, now = before.get(path), after.get(path)
        if was is not now and was != now and not (was != was and now != now):
            return f"its forward changes {_own_path(path)}, which a replay would not"
    return ""


def _changed_tensor(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    for path in [*before, *(path for path in after if path not in before)]:
        if before.get(path) is not after.get(path) and not path.endswith(".grad"):
            return f"its forward puts another tensor into {_own_path(path)}, as a replay would not"
    for path, tensor in after.items():
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad and not tensor.is_leaf:
            return f"it uses {_own_path(path)}, which is computed outside it with gradients"
    return ""


def _own_path(path: str) -> str:
    return path.replace("module.", "", 1)


def _written_input(
    given: list[torch.Tensor], versions: list[int | None], copies: list[torch.Tensor]
) -> str:
    for tensor, version, copy in zip(given, versions, copies, strict=True):
        if version_of(tensor) != version or not has_same_bits(tensor, copy):
            return "it writes into its input, and a graph would write into a copy"
    return ""


def _follow(
    call: Observed, module: torch.nn.Module, given: list[torch.Tensor], outputs: object
) -> None:
    """Look at what a call returned, and note when its backward pass comes."""
    try:
        tensors = tensors_in(outputs)
        reason = _reason_in_outputs(module, given, tensors) or _reason_in_nesting(call, outputs)
    except Unwatchable as error:
        call.reason = call.reason or str(error)
        return
    call.reason = call.reason or reason
    wanting = [index for index, tensor in enumerate(tensors) if tensor.requires_grad]
    if not wanting:
        call.at_once = max(call.at_once, 1)
        return
    call.wants_gradients = True
    call.waiting += 1
    call.at_once = max(call.at_once, call.waiting)
    came: set[int] = set()
    for index in wanting:
        tensors[index].register_hook(partial(_gradient_came, call, came, index))


def _reason_in_outputs(
    module: torch.nn.Module, given: list[torch.Tensor], returned: list[torch.Tensor]
) -> str:
    if not returned:
        return "it returns no tensor"
    lasting = memory_of([*given, *named_tensors({"module": module}).values()])
    for tensor in returned:
        if not tensor.is_cuda:
            return "it returns a tensor on the CPU"
        if tensor.layout != torch.strided or tensor.is_nested:
            return "it returns a tensor that is not strided"
        if memory_of([tensor]) & lasting:
            return "it returns memory of its input or state, of which a graph has a copy"
    return ""


def _reason_in_nesting(call: Observed, outputs: object) -> str:
    if call.returned is None:
        call.returned = Nesting(outputs)
        return ""
    same = call.returned.kind == kind_of(outputs)
    return "" if same else "its forward does not return the same kind of value in every call"


def _gradient_came(call: Observed, came: set[int], index: int, gradient: torch.Tensor) -> None:
    if not came:
        call.waiting -= 1
    if index in came:
        call.reason = call.reason or "its backward pass runs twice for one forward"
    if torch.is_grad_enabled():
        call.reason = call.reason or "its gradients are differentiated again"
    came.add(index)
    call.given = (call.given or set()) | {index}


_ABSENT = object()


def put_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> object:
    """Let calls of the module use `forward`; gives what `take_back` needs."""
    before = module.__dict__.get("forward", _ABSENT)
    module.__dict__["forward"] = forward
    return before


def take_back(module: torch.nn.Module, before: object) -> None:
    """Put back what was there before `put_forward`: most often nothing, but the class's method."""
    if before is _ABSENT:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = before


@contextmanager
def swapped_forward(module: torch.nn.Module, replacement: Callable[..., Any]) -> Iterator[None]:
    """Within the block, calls go to `replacement`, which gets the original forward first."""
    before = put_forward(module, partial(replacement, module.forward))
    try:
        yield
    finally:
        take_back(module, before)
