"""One graph of a whole step: the calls that it serves, its guards, and what it leaves behind."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from graphdoctor.captured.step_optimizers import Numbers, OptimizerGuard
from graphdoctor.captured.step_results import KeptResults, Place
from graphdoctor.graphs.calls import (
    CallForm,
    Nesting,
    NoForm,
    Outputs,
    Unwatchable,
    distinct,
    form_by,
    signature,
)
from graphdoctor.graphs.calls.call_form import Reads, is_the_very, reads_of
from graphdoctor.graphs.calls.outputs import tensors_in
from graphdoctor.graphs.calls.signature import (
    TENSORS,
    Key,
    is_constant,
    parts_of_argument,
    structure_of,
)
from graphdoctor.graphs.graphed_callable import GraphedCallable, Tensors, copy_into
from graphdoctor.graphs.guards import Guard, Modes
from graphdoctor.graphs.whole_step import CapturedStep as WholeStep
from graphdoctor.target import Target
from graphdoctor.target.state.attributes import attributes, has_walkable_state
from graphdoctor.target.state.clone import memory_of
from graphdoctor.target.state.snapshot import named_tensors
from graphdoctor.target.state.walk import Walk

Gradient = tuple[torch.Tensor, torch.Tensor]  # a parameter, and its gradient before the step
_GRAD = ".grad"
# Of a target: the tensors that a captured step adds.
NUMBERS, RESULTS = OWN_ROOTS = "captured numbers", "captured results"
_GUARDED_APART = (
    torch.optim.Optimizer,
    torch.amp.GradScaler,
    torch.optim.lr_scheduler.LRScheduler,
    torch.utils.data.DataLoader,
)


def signature_of_call(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], written: Set[int | str] = frozenset()
) -> tuple[Key, list[torch.Tensor]]:
    """The key of a call's arguments, and its tensors in order, as `signature` gives them.

    A module, an optimizer, a function or another object that can change, such as a cache, is state: it counts by its
    identity. So do the tensors of the arguments at the places that are `written` to.
    """

    def identity(place: int | str, argument: object) -> object:
        if place in written:
            tensors: list[torch.Tensor] = []
            structure = repr(structure_of(argument, tensors, parts_of_argument))
            return (structure, *map(id, tensors))
        return (type(argument).__name__, id(argument)) if is_state(argument) else argument

    return signature(
        tuple([identity(place, each) for place, each in enumerate(args)]),
        {name: identity(name, each) for name, each in kwargs.items()},
    )


def form_of_call(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], written: Set[int | str] = frozenset()
) -> CallForm | None:
    """The form of such a call, which other calls of the same key may lack; None if it has none."""

    def reads(place: int | str, argument: object) -> Reads:
        if place in written:
            return _reads_these(argument)
        return is_the_very(argument) if is_state(argument) else reads_of(argument)

    try:
        readers = [reads(place, each) for place, each in enumerate(args)]
        readers += [reads(name, each) for name, each in kwargs.items()]
    except NoForm:
        return None
    return form_by(readers, args, kwargs)


def _reads_these(argument: object) -> Reads:
    """A function that reads arguments with the very tensors of this one, which are state."""
    read, tensors = reads_of(argument), list[torch.Tensor]()
    read(argument, tensors)

    def are_these(now: object, _: list[torch.Tensor]) -> bool:
        found: list[torch.Tensor] = []
        return (
            read(now, found)
            and len(found) == len(tensors)
            and all(map(operator.is_, found, tensors))
        )

    return are_these


def is_state(argument: object) -> bool:
    """Whether a guard can watch what an argument holds, while no copy of it can hold other tensors."""
    if type(argument) in TENSORS or is_constant(argument):
        return False
    if isinstance(argument, (torch.nn.Module, FunctionType, partial, *_GUARDED_APART)):
        return True
    if isinstance(argument, BuiltinFunctionType):  # not a method of a tensor
        return argument.__self__ is None or isinstance(argument.__self__, ModuleType)
    can_change = bool(attributes(argument)) and not callable(argument)
    return can_change and has_walkable_state(argument) and parts_of_argument(argument) is None


class StepGraph:
    """A proved graph of a step, for calls with tensors like `tensors`.

    The step adds to, or steps with, `read_gradients`, which were there before it began. `results` are the
    attributes that have another tensor in each call, and it reads those in `read_results`. `numbers` are
    those that its Python changes, as they were at the capture. `leaves_gradients`: the step neither reads nor writes
    gradients. `lends`: the step copies pinned tensors with `non_blocking`. `proof` is how replays match eager.
    Raises `Unwatchable` for a step that leaves behind what a replay cannot.
    """

    def __init__(
        self,
        made: WholeStep,
        target: Target,
        tensors: Sequence[torch.Tensor],
        *,
        modes: Modes,
        optimizers: Sequence[OptimizerGuard],
        read_gradients: Sequence[Gradient],
        results: KeptResults,
        read_results: Sequence[Place],
        launches: int,
        written: Set[int | str] = frozenset(),
        leaves_gradients: bool = False,
        numbers: tuple[object, ...] = (),
        lends: bool = False,
        proof: str = "",
    ) -> None:
        self.served, self.launches, self.proof = 0, launches, proof
        self.numbers = numbers
        self._made, self._modes, self._optimizers = made, modes, optimizers
        state = named_tensors(target.roots)
        left = {} if leaves_gradients else dict(_gradients_left(made.footprint.tensors, state))
        self.gradients: dict[torch.Tensor, torch.Tensor | None] = left
        self._read, self.read_results = read_gradients, read_results
        self.keeps_gradients = all(left.get(p) is each for p, each in read_gradients)
        if rebound := next(_rebound(made.footprint.tensors, state), ""):
            raise Unwatchable(
                f"the step puts another tensor into {rebound}: copy into the one that is there"
            )
        _, given = signature_of_call(made.static_inputs.args, made.static_inputs.kwargs, written)
        given = distinct(given)
        self._has_inputs = bool(given)
        # Optimizers have a guard of their own; schedules and scalers run outside, or keep their state on the GPU,
        # and loaders, which Accelerate's state leads to, count the batches that they give between steps.
        apart = [v for _, v, _ in Walk(target.roots) if isinstance(v, _GUARDED_APART)]
        roots = {n: r for n, r in target.roots.items() if not isinstance(r, _GUARDED_APART)}
        behind = {n: enumerate(_behind(root)) for n, root in roots.items()}
        roots |= {f"{n} {at}": each for n, found in behind.items() for at, each in found}
        # The target's step is our wrapper, whose variables the program does not change.
        roots = {n: r for n, r in roots.items() if r is not target.step and n not in OWN_ROOTS}
        with results.standing():
            self._guard = Guard(roots, without=apart, varying=results.keys, grad=True)
        if memory_of(given) & memory_of(state.values()):
            raise Unwatchable("an argument of the step is a tensor of its state")
        inputs = made.static_inputs
        objects = [each for each in (*inputs.args, *inputs.kwargs.values()) if is_state(each)]
        outputs = Outputs(
            Nesting(made.outputs, objects),
            tensors_in(made.outputs, objects),
            inputs=given,
            state=list(state.values()),
            clones=True,
        )
        on_host = [place for place, each in enumerate(distinct(tensors)) if not each.is_cuda]
        on_host = [place for place in on_host if given[place].is_cuda]
        load = copy_into(given, on_host, lends=lends)
        self._graph = GraphedCallable(made.graph, given, outputs.build, load)

    def load_results(self) -> str:
        """Take the tensors of attributes as inputs of the next replay; returns why one does not fit, or ""."""
        for place in self.read_results:
            if why := place.load():
                return why
        return ""

    def run(self, tensors: Tensors, *, has_gradients: bool = False) -> object:
        """Replay the step on these tensors, each once; the gradients are then where eager leaves them.

        `has_gradients`: they are there now.
        """
        graph = self._graph
        if has_gradients:
            graph.load(tensors)
            graph.replay()
        else:
            for parameter, gradient in self._read:
                now = parameter.grad
                if now is not gradient and now is not None:
                    gradient.copy_(now)
            graph.load(tensors)
            graph.replay()
            for parameter, left in self.gradients.items():
                if parameter.grad is not left:
                    parameter.grad = left
        self.served += 1
        return graph.build(tensors)

    def known_check(self) -> Callable[[], bool]:
        """Whether a replay still computes the step, in calls whose form and gradient mode are those of this call.

        Where it does not, `difference` decides. What the step's Python changes has to be as at the capture.
        """
        guard, stream_number = self._guard, self._modes.stream_number
        modes_are_same = self._modes.in_gradient_mode(has_tensors=self._has_inputs)
        differences = [each.difference for each in self._optimizers]

        def is_same() -> bool:
            for difference in differences:
                if difference():
                    return False
            return guard.is_same() and modes_are_same(stream_number())

        return is_same

    def difference(self) -> str:
        """What changed since the capture, in one sentence; "" if a replay still computes the step."""
        for optimizer in self._optimizers:
            if why := optimizer.difference():
                return why
        if not self._modes.is_same():
            return self._modes.difference()
        return "" if self._guard.is_same() else self._guard.difference(grad=True)

    def adopts_loaded_state(self) -> bool:
        """Take over what `load_state_dict` of the optimizers loaded; False if it does not fit."""
        return all([optimizer.adopt() for optimizer in self._optimizers])

    def moves_options(self, numbers: Numbers) -> bool:
        """Whether nothing changed but options of optimizers that graphs can read from a tensor."""
        return any([optimizer.moves_options(numbers) for optimizer in self._optimizers])

    def release(self) -> None:
        """Give the graph's memory back."""
        self._graph.release()
        self._made.release()


def _gradients_left(
    left: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Each parameter of the state with the gradient that a step leaves it, None for none."""
    for path, tensor in state.items():
        if tensor.requires_grad and tensor.is_leaf and not path.endswith(_GRAD):
            yield tensor, left.get(path + _GRAD)


def _behind(step: object) -> Iterator[object]:
    """What a function wraps, as `functools.wraps` says, or a `partial` calls and binds, outermost first."""
    while True:
        if isinstance(step, partial):
            yield from (step.args, step.keywords)
            step = step.func
        elif isinstance(step, FunctionType) and (inner := getattr(step, "__wrapped__", None)):
            step = inner.__func__ if isinstance(inner, MethodType) else inner
        else:
            return
        yield step


def _rebound(left: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Paths, but for gradients', at which a step leaves another tensor than was there."""
    for path, tensor in left.items():
        is_state = not path.startswith(("output", "inputs")) and not path.endswith(_GRAD)
        if is_state and path in state and state[path] is not tensor:
            yield path
