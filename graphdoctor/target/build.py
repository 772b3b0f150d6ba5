"""Build a target from its description: the step, its mode, inputs and roots, and notes on what was chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from typing import get_args

import torch

from graphdoctor.target.description import Description
from graphdoctor.target.inputs.fresh import supply
from graphdoctor.target.roots import hooks_of_all, roots_among, roots_of, trains
from graphdoctor.target.state.tree import leaves
from graphdoctor.target.state.walk import Walk
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import needed_arguments, user_code
from graphdoctor.values.errors import UsageError
from graphdoctor.values.report import IN_TRAIN_MODE, Mode
from graphdoctor.values.spelling import meant

Step = Callable[..., object]

_LEARNING_RATE = 0.01
_INFERENCE_NOTE = "the step is the module's forward under torch.no_grad()"
_TRAINING_NOTE = (
    "no training step was given, so one was made: loss = sum of all floating outputs, "
    f"optimizer = SGD(lr={_LEARNING_RATE})"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a description came from, and the training functions beside it, if there are any.

    `train_step(model, *inputs)` runs one step; with `get_optimizer(model)` beside it, it is
    `train_step(model, optimizer, *inputs)`.
    """

    name: str
    file: str
    entry: str
    train_step: Step | None = None
    get_optimizer: Step | None = None


def build(
    description: Description, origin: Origin, *, mode: Mode | None, close: Callable[[], None]
) -> Target:
    """Make the target. What it changes in the user's objects is undone by the target's `close`.

    Raises UsageError for a mode that there is not.
    """
    if mode not in (None, *(known := get_args(Mode))):
        raise UsageError(
            f"mode must be one of {', '.join(known)}, not {mode!r}{meant(str(mode), known)}"
        )
    if isinstance(description.subject, torch.nn.Module):
        return _from_module(description, origin, mode, close)
    return _from_step(description, origin, mode, close)


def _from_module(
    description: Description, origin: Origin, mode: Mode | None, close: Callable[[], None]
) -> Target:
    model = description.subject
    assert isinstance(model, torch.nn.Module)
    with ExitStack() as undo:
        for module in model.modules():  # choosing a mode sets their flags
            undo.callback(setattr, module, "training", module.training)
        source = description.inputs or _no_inputs(model)
        made = supply(source, kept=_owned({"model": model, **description.state}))
        chosen = mode or ("training" if origin.train_step else "inference")
        step, roots, notes = _step_of(model, origin, chosen, is_ours=description.is_ours)
        undo.callback(close)
        back = undo.pop_all().close
    carried = roots_among(made.described, step)
    return Target(
        name=origin.name,
        file=origin.file,
        entry=origin.entry,
        mode=chosen,
        step=step,
        fresh_inputs=made.make,
        roots=_without_repeats({**roots, **description.state, **carried, **hooks_of_all()}),
        notes=(*description.notes, *made.notes, *notes),
        close=back,
        variation=made.variation,
    )


def _step_of(
    model: torch.nn.Module, origin: Origin, mode: Mode, *, is_ours: bool
) -> tuple[Step, dict[str, object], tuple[str, ...]]:
    if mode == "inference":
        return _inference_step(model), {"model": model}, _inference_notes(model, is_ours)
    model.train()
    if origin.train_step is None:
        optimizer = _optimizer_for(model)
        step = _training_step(model, optimizer)
        return step, {"model": model, "optimizer": optimizer}, (_TRAINING_NOTE,)
    if origin.get_optimizer is None:
        bound = partial(origin.train_step, model)
        return bound, {"model": model, **roots_of(bound)}, ("the step is train_step()",)
    with user_code("get_optimizer()"):
        given = origin.get_optimizer(model)
    bound = partial(origin.train_step, model, given)
    roots = {"model": model, "optimizer": given, **roots_of(bound)}
    return bound, roots, ("the step is train_step(), with get_optimizer()'s optimizer",)


def _inference_notes(model: torch.nn.Module, is_ours: bool) -> tuple[str, ...]:
    if not model.training:
        return (_INFERENCE_NOTE,)
    if is_ours:
        model.eval()
        return (_INFERENCE_NOTE, "the module was put into evaluation mode")
    return (
        _INFERENCE_NOTE,
        IN_TRAIN_MODE,
    )


def _from_step(
    description: Description, origin: Origin, mode: Mode | None, close: Callable[[], None]
) -> Target:
    step = description.subject
    own = roots_of(step)
    found = {**description.state, **own}
    made = supply(description.inputs or _no_inputs(step), kept=_owned(found))
    carried = roots_among(made.described, step)
    roots = _without_repeats({**description.state, **carried, **own, **hooks_of_all()})
    is_training = trains(step, roots)
    notes = [*description.notes, *made.notes]
    if mode == "inference" and is_training:
        notes.append("the step trains, and was analyzed as inference because the mode says so")
    if mode == "training" and not is_training:
        notes.append(
            "the step was analyzed as given: graphdoctor adds a training step to a bare module only"
        )
    return Target(
        name=origin.name,
        file=origin.file,
        entry=origin.entry,
        mode=mode or ("training" if is_training else "inference"),
        step=step,
        fresh_inputs=made.make,
        roots=roots,
        notes=tuple(notes),
        close=close,
        variation=made.variation,
    )


def _no_inputs(subject: Step) -> Inputs:
    called = subject.forward if isinstance(subject, torch.nn.Module) else subject
    needed = needed_arguments(called)
    if needed:
        name = getattr(subject, "__name__", type(subject).__name__)
        raise UsageError(
            f"{name} takes {', '.join(needed)}, but nothing says what its inputs are: "
            f"add get_inputs() to the file, return (module, inputs), or give "
            f"--input 8x3x224x224:float32"
        )
    return Inputs()


def _owned(roots: Mapping[str, object]) -> frozenset[int]:
    """Tensors that belong to a module or an optimizer: passed to the step, they are state."""
    owned: set[int] = set()
    for _, value, _ in Walk(roots):
        if isinstance(value, torch.nn.Module):
            own = (*value._parameters.values(), *value._buffers.values())
            owned.update(id(tensor) for tensor in own if tensor is not None)
        elif isinstance(value, torch.optim.Optimizer):
            owned.update(id(p) for group in value.param_groups for p in group["params"])
    return frozenset(owned)


def _without_repeats(roots: Mapping[str, object]) -> dict[str, object]:
    """Each object under its first name only."""
    seen: dict[int, str] = {}
    for name, root in roots.items():
        seen.setdefault(id(root), name)
    return {name: root for name, root in roots.items() if seen[id(root)] == name}


def _inference_step(model: torch.nn.Module) -> Step:
    """The module's forward, without gradients."""

    def step(*args: object, **kwargs: object) -> object:
        with torch.no_grad():
            return model(*args, **kwargs)

    return step


def _optimizer_for(model: torch.nn.Module) -> torch.optim.Optimizer:
    """SGD over what can be trained; a module with nothing to train is a `UsageError`."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise UsageError(
            f"{type(model).__name__} has no parameter that requires a gradient, so it cannot be "
            f"trained; use --mode inference"
        )
    return torch.optim.SGD(trained, lr=_LEARNING_RATE)


def _training_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Forward, the sum of all floating outputs as the loss, backward, optimizer step."""

    def step(*args: object, **kwargs: object) -> object:
        optimizer.zero_grad(set_to_none=True)
        loss = _loss_of(model(*args, **kwargs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _loss_of(output: object) -> torch.Tensor:
    terms = [
        leaf.float().sum()
        for leaf in leaves(output, "output").values()
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.requires_grad
    ]
    if not terms:
        raise UsageError(
            "the module has no floating output with a gradient to train on; use --mode inference, "
            "or describe the training step with graphdoctor_target()"
        )
    return reduce(torch.add, terms)
