"""Chosen modules -> lines of Python that graph them without graphdoctor, to paste."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from graphdoctor.strategies.strategy import Known

_TRAINING = """\
# Before the first step, in training mode. examples: a tuple of tensors on
# the GPU, of the shapes and the requires_grad of that module's real inputs,
# which are positional arguments only. Set .grad to None before each
# backward pass (optimizer.zero_grad does): accumulated gradients are wrong,
# pytorch/pytorch#181723.
"""
_INFERENCE = """\
# In evaluation mode. examples: that module's inputs, with real shapes, on
# the GPU.
import graphdoctor

"""


def code_for(chosen: Iterable[str], known: Known) -> str:
    """One line for each module."""
    places = [_expression(path, known.roots) for path in chosen]
    if known.mode == "training":
        made = "{0} = torch.cuda.make_graphed_callables({0}, examples)"
        return _TRAINING + "\n".join(made.format(place) for place in places) + "\n"
    made = "{0} = graphdoctor.capture({0}, *examples)"
    return _INFERENCE + "\n".join(made.format(place) for place in places) + "\n"


def _expression(path: str, roots: Mapping[str, object]) -> str:
    """ "layers.0.mlp" -> "model.layers[0].mlp", after the name of the root that holds it."""
    first, *rest = path.split(".") if path else [""]
    if first not in roots:
        rest = [first, *rest] if first else rest
        first = _nameless(roots)
    return first + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in rest)


def _nameless(roots: Mapping[str, object]) -> str:
    """The name of the only model, whose modules' paths do without it."""
    models = [n for n, root in roots.items() if isinstance(root, torch.nn.Module)]
    trained = [n for n in models if any(True for _ in roots[n].parameters())]  # type: ignore[attr-defined]
    return (trained or models or ["model"])[0]
