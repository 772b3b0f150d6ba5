"""What a run of a step leaves behind: outputs, gradients, state, inputs, Python values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from graphdoctor.graphs.compare import (
    Gap,
    gap_between,
    have_same_bits,
    local_part,
)
from graphdoctor.graphs.static_inputs import is_same_value
from graphdoctor.target.state.saved_tensor import is_cheap_to_copy
from graphdoctor.target.state.snapshot import NamedState, has_memory, named_state, named_tensors
from graphdoctor.target.target import Inputs


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a run left behind, by path; outputs first, then gradients, state and inputs.

    `values` are numbers and strings that the step returned; `host` is Python state behind the
    roots. The tensors are the step's own, not copies, until `keep` makes some.
    """

    tensors: Mapping[str, torch.Tensor]
    values: Mapping[str, object]
    host: Mapping[str, object]


def footprint(
    roots: Mapping[str, object],
    inputs: Inputs,
    outputs: object,
    *,
    named: NamedState | None = None,
) -> Footprint:
    """What is there now. `named` is the state of the roots, if the caller has just read it."""
    state, host = named_state(roots) if named is None else named
    # A parameter that the step returns leads to its gradient and its hooks, which are looked at as state.
    tensors, values = named_state(
        {"output": outputs}, leaves=frozenset(id(tensor) for tensor in state.values())
    )
    tensors |= {path: tensor for path, tensor in state.items() if path.endswith(".grad")}
    tensors |= {path: tensor for path, tensor in state.items() if path not in tensors}
    for part in filter(None, (inputs.args, dict(inputs.kwargs))):
        tensors |= named_tensors({"inputs": part})
    return Footprint(dict(_dense_parts(tensors)), values, host)


def _dense_parts(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Of what has no elements of its own to compare, the tensors that it is made of stand for it.

    A nested tensor has no shape; a subclass that wraps others, such as a quantized weight, allows only
    the operators that it defines, and the walk that named it has named its parts, too. A storage that the
    step frees holds nothing until the next step fills it.
    """
    for path, tensor in tensors.items():
        if not has_memory(tensor) and not is_traceable_wrapper_subclass(tensor):
            continue
        if tensor.dtype == torch.uint8 and tensor.shape == _GENERATOR_STATE:
            continue  # whoever compares two runs has seeded the CPU's generator
        with torch._C.DisableTorchFunction():
            is_nested = tensor.is_nested
        if not is_nested:
            if local_part(tensor) is not tensor or not is_traceable_wrapper_subclass(tensor):
                yield path, tensor
            continue
        with _disable_current_modes():  # no part of the step
            nested: Any = tensor.detach()
            yield f"{path}.values()", nested.values()
            if nested.layout == torch.strided:
                yield f"{path}.sizes", nested._nested_tensor_size()
                continue
            yield f"{path}.offsets()", nested.offsets()
            if nested.lengths() is not None:
                yield f"{path}.lengths()", nested.lengths()


_GENERATOR_STATE = torch.default_generator.get_state().shape


def keep(seen: Footprint, before: Footprint | None = None) -> Footprint:
    """Copies that later steps cannot change; shares with `before`, itself a copy, what is equal."""
    now = {path: tensor.detach() for path, tensor in seen.tensors.items()}
    earlier = before.tensors if before is not None else {}
    asked = [path for path in now if path in earlier and not is_cheap_to_copy(now[path])]
    are_same = have_same_bits([(earlier[path], now[path]) for path in asked])
    kept = {path: earlier[path] for path in compress(asked, are_same)}
    copies = {path: kept[path] if path in kept else tensor.clone() for path, tensor in now.items()}
    return Footprint(copies, dict(seen.values), dict(seen.host))


def gaps_between(expected: Footprint, actual: Footprint) -> list[Gap]:
    """Everything but Python state that differs, in the order of `expected`."""
    found = list(_tensor_gaps(expected.tensors, actual.tensors))
    found.extend(_value_gaps(expected.values, actual.values))
    return found


def _tensor_gaps(
    expected: Mapping[str, torch.Tensor], actual: Mapping[str, torch.Tensor]
) -> Iterator[Gap]:
    pairs = [(tensor, actual[path]) for path, tensor in expected.items() if path in actual]
    are_same = iter(have_same_bits(pairs))
    for path, tensor in expected.items():
        if path not in actual:
            yield Gap(path, detail="eager leaves this tensor behind, a replay does not")
        elif not next(are_same) and (gap := gap_between(path, tensor, actual[path])) is not None:
            yield gap
    for path in actual.keys() - expected.keys():
        yield Gap(path, detail="a replay leaves this tensor behind, eager does not")


def _value_gaps(expected: Mapping[str, object], actual: Mapping[str, object]) -> Iterator[Gap]:
    for path, value in expected.items():
        if path not in actual or not is_same_value(value, actual[path]):
            frozen = repr(actual[path]) if path in actual else "absent"
            yield Gap(path, detail=f"a Python value: {value!r} in eager, {frozen} at every replay")


def stopped_host_state(expected: Mapping[str, object], actual: Mapping[str, object]) -> list[str]:
    """Paths of Python state that eager advanced, and replays, which run no Python, did not."""
    return [
        path
        for path, value in expected.items()
        if path not in actual or not is_same_value(value, actual[path])
    ]
