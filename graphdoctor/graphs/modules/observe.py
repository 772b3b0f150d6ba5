"""Modules and a run of the step -> with what each of them was called, and what came of the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from graphdoctor.graphs.compare import has_same_bits
from graphdoctor.graphs.modules.arguments import Flat, distinct, flat_call, signature_of
from graphdoctor.graphs.modules.contexts import unusual_context
from graphdoctor.graphs.modules.nesting import Nesting, kind_of, unlike
from graphdoctor.graphs.modules.swap import swapped_forward
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.snapshot import named_state, named_tensors
from graphdoctor.target.target import Inputs

Signature = tuple[object, ...]
_ELSEWHERE = "it is called inside activation checkpointing, a trace or a transform"


@dataclass
class Observed:
    """The calls of one module with one signature.

    `sample` is the first of them, on memory of its own, and `returned` how its outputs are nested.
    `at_once` is how many of them waited for their backward pass at the same time;
    `wants_gradients`: some output hangs on autograd. `given` are the outputs, by position, for which
    a gradient came; None where no backward pass was seen. `trouble` says why no graph can serve them.
    """

    signature: Signature
    sample: Inputs
    wants_gradients: bool = False
    at_once: int = 0
    waiting: int = 0
    returned: Nesting | None = None
    given: set[int] | None = None
    trouble: str = ""


@dataclass
class Observations:
    """All calls of one module, by signature."""

    calls: dict[Signature, Observed] = field(default_factory=dict)


def observe(
    modules: Mapping[str, torch.nn.Module], run: Callable[[], object]
) -> dict[str, Observations]:
    """Watch the modules while `run` calls them. They must not contain each other."""
    seen = {path: Observations() for path in modules}
    with ExitStack() as stack:
        for path, module in modules.items():
            watching = partial(_watched_call, module, seen[path])
            stack.enter_context(swapped_forward(module, watching))
        run()
    return seen


def _watched_call(
    module: torch.nn.Module,
    seen: Observations,
    forward: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    grad = torch.is_grad_enabled()
    flat = flat_call(args, kwargs)
    if flat.unknown:
        signature: Signature = ("unknown", flat.unknown)
    else:
        signature = signature_of(flat, grad)
    call = seen.calls.get(signature)
    if call is None:
        given = Inputs() if flat.unknown else clone_inputs(Inputs(args, kwargs))
        call = seen.calls[signature] = Observed(signature, given)
        call.trouble = _trouble_of_arguments(module, flat, call)
    with _watching_state(module, flat, call):
        outputs = forward(*args, **kwargs)
    _follow(call, module, flat, outputs)
    return outputs


def _trouble_of_arguments(module: torch.nn.Module, flat: Flat, call: Observed) -> str:
    if flat.unknown:
        return f"an argument is of type {flat.unknown}, whose content a graph cannot watch"
    if unusual_context():
        return _ELSEWHERE
    if not _is_like(flat, call):
        return "its arguments are nested in a way that cannot be copied"
    own = memory_of(named_tensors({"module": module}).values())
    for tensor in flat.tensors:
        if not tensor.is_cuda:
            return "an argument is a tensor on the CPU, whose values a graph would freeze"
        if tensor.layout != torch.strided or tensor.is_nested:
            return "an argument is a tensor that is not strided"
        if not isinstance(tensor, torch.nn.Parameter) and memory_of([tensor]) & own:
            return "an argument is the module's own state"
    return ""


def _is_like(flat: Flat, call: Observed) -> bool:
    """Whether the sample is the same call, and has every tensor of it on memory of its own."""
    copied = flat_call(call.sample.args, call.sample.kwargs)
    own = {id(tensor) for tensor in flat.tensors}
    return copied.frozen == flat.frozen and not any(id(t) in own for t in copied.tensors)


@contextmanager
def _watching_state(module: torch.nn.Module, flat: Flat, call: Observed) -> Iterator[None]:
    """Note what a forward changes that a replay would not: attributes, tensors' identity, inputs."""
    if call.trouble:
        yield
        return
    tensors, values = named_state({"module": module})
    versions = [_version(tensor) for tensor in flat.tensors]
    copies = [tensor.detach().clone() for tensor in flat.tensors]
    yield
    tensors_now, values_now = named_state({"module": module})
    call.trouble = call.trouble or (
        _changed_value(values, values_now)
        or _changed_tensor(tensors, tensors_now)
        or _written_input(flat, versions, copies)
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


def _written_input(flat: Flat, versions: list[int | None], copies: list[torch.Tensor]) -> str:
    for tensor, version, copy in zip(flat.tensors, versions, copies, strict=True):
        if _version(tensor) != version or not has_same_bits(tensor, copy):
            return "it writes into its input, and a graph would write into a copy"
    return ""


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _follow(call: Observed, module: torch.nn.Module, flat: Flat, outputs: object) -> None:
    """Look at what a call returned, and note when its backward pass comes."""
    returned = Flat()
    returned.add(outputs)
    tensors = distinct(returned.tensors)
    call.trouble = (
        call.trouble
        or _trouble_of_outputs(module, flat, returned)
        or _trouble_of_nesting(call, outputs, tensors)
    )
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


def _trouble_of_outputs(module: torch.nn.Module, given: Flat, returned: Flat) -> str:
    if returned.unknown:
        return f"it returns a {returned.unknown}, whose content a graph cannot make"
    if not returned.tensors:
        return "it returns no tensor"
    lasting = memory_of([*given.tensors, *(t for t in named_tensors({"module": module}).values())])
    for tensor in returned.tensors:
        if not tensor.is_cuda:
            return "it returns a tensor on the CPU"
        if tensor.layout != torch.strided or tensor.is_nested:
            return "it returns a tensor that is not strided"
        if memory_of([tensor]) & lasting:
            return "it returns memory of its input or of its own state, of which a graph has a copy"
    return ""


def _trouble_of_nesting(call: Observed, outputs: object, tensors: list[torch.Tensor]) -> str:
    if call.returned is not None:
        same = call.returned.kind == kind_of(outputs)
        return "" if same else "its forward does not return the same kind of value in every call"
    try:
        call.returned = Nesting(outputs, tensors)
    except Exception as error:  # a class of the user's that cannot be copied
        name = type(outputs).__name__
        return f"it returns a {name}, which cannot be made anew ({type(error).__name__})"
    return unlike(outputs, call.returned, tensors)


def _gradient_came(call: Observed, came: set[int], index: int, gradient: torch.Tensor) -> None:
    if not came:
        call.waiting -= 1
    if index in came:
        call.trouble = call.trouble or "its backward pass runs twice for one forward"
    if torch.is_grad_enabled():
        call.trouble = call.trouble or "its gradients are differentiated again"
    came.add(index)
    call.given = (call.given or set()) | {index}
