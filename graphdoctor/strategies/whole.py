"""Run all of a step as one CUDA graph; and what any strategy built, to be compared with eager like such a graph."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct

from graphdoctor.estimate import Regions
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.footprint import Footprint
from graphdoctor.graphs.whole_step import CapturedStep, capture_from_start
from graphdoctor.record.session import Session, warm_ups_for
from graphdoctor.strategies.strategy import Built, CannotBuild, Known, Strategy
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.snapshot import Snapshot, named_tensors
from graphdoctor.target.target import Inputs
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import in_place, with_place
from graphdoctor.values.recording import TensorUse

_PATH = re.compile(r"inputs\[(?P<place>\d+)\]|inputs\.(?P<name>\w+)")

_INFERENCE = """\
{clones}  # in evaluation mode, on the GPU
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side), torch.no_grad():
    for _ in range(3):
        {call}
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    static_output = {call}

def fast({names}):
    # A shorter last batch (drop_last=False in the DataLoader) does not fit: call the model for it.
{copies}
    graph.replay()
    return static_output.clone()  # the next replay writes over static_output
"""
_ONE_INPUT = _INFERENCE.format(
    clones="static_input = example.clone()",
    call="model(static_input)",
    names="data",
    copies="    static_input.copy_(data)  # same shape and dtype as the example",
)

_TRAINING = """\
static_inputs = tuple(tensor.clone() for tensor in examples)  # on the GPU
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range({warm_ups}):  # these steps train: save the state before, and load it afterwards
        step(*static_inputs)
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # this runs nothing: the first replay is the next step
    static_loss = step(*static_inputs)  # forward, backward and optimizer.step()

def fast_step(*data):
    # A shorter last batch does not fit, and one of size 1 is repeated: use drop_last=True.
    for static, fresh in zip(static_inputs, data):
        static.copy_(fresh)  # same shapes and dtypes as the examples
    graph.replay()
    return static_loss.clone()  # the next replay writes over static_loss
"""


class BuiltWhole(Built):
    """One graph, and the tensors that it reads and fills. `captured` can be verified and timed."""

    def __init__(self, captured: CapturedStep) -> None:
        self.captured = captured

    def call(self, inputs: Inputs) -> object:
        return self.captured.call(inputs)

    def left_behind(self, inputs: Inputs, outputs: object) -> Footprint:
        """Those of the captured run: no Python runs in a call, so it fills the same tensors."""
        return self.captured.footprint

    def release(self) -> None:
        self.captured.release()


class Whole(Strategy):
    """The whole step as one graph: the most that a graph can save, and all or nothing."""

    name = "whole"
    title = "the whole step as one CUDA graph"

    def reason_against(self, known: Known) -> str:
        """The first finding that forbids it: a capture that fails says more than a wrong replay."""
        for effect in ("capture-fails", "replay-is-wrong"):
            finding = next((found for found in known.findings if found.effect == effect), None)
            if finding is not None:
                return _reason(finding)
        return ""

    def regions(self, known: Known) -> Regions | None:
        """All operators of the step, in one graph."""
        return (tuple(op.index for op in known.iteration.ops),)

    def build(self, session: Session, known: Known) -> BuiltWhole:
        made = capture_from_start(session)
        if isinstance(made, Refusal):
            raise CannotBuild(with_place(made.reason, made.location))
        return BuiltWhole(made)

    def code(self, known: Known) -> str:
        if known.mode == "inference":
            return _inference(known)
        return _TRAINING.format(warm_ups=warm_ups_for(known.roots))


def _inference(known: Known) -> str:
    """The call that was verified: every tensor has a static one of its parameter's name, all else is as given."""
    model = known.roots.get("model")
    given = [(_PATH.fullmatch(leaf.path), leaf.value) for leaf in known.iteration.inputs]
    is_plain = all(
        path and (isinstance(value, TensorUse) or _is_literal(value)) for path, value in given
    )
    is_one = [leaf.path for leaf in known.iteration.inputs] == ["inputs[0]"]
    if not isinstance(model, torch.nn.Module) or not is_plain or is_one:
        return _ONE_INPUT
    parameters = list(inspect.signature(model.forward).parameters)
    names: list[str] = []
    arguments: list[str] = []
    for path, value in given:
        assert path is not None
        place, keyword = path["place"], path["name"] or ""
        is_listed = place is not None and int(place) < len(parameters)
        name = keyword or (parameters[int(place)] if is_listed else f"input_{place}")
        if isinstance(value, TensorUse):
            names.append(name)
            value = f"static_{name}"
        arguments.append(f"{keyword}={value}" if keyword else value)
    return _INFERENCE.format(
        clones="\n".join(f"static_{name} = {name}.clone()" for name in names),
        call=f"model({', '.join(arguments)})",
        names=", ".join(names),
        copies="\n".join(f"    static_{name}.copy_({name})" for name in names),
    )


def _is_literal(text: str) -> bool:
    """Whether Python reads it back as the value that it shows."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _reason(finding: Finding) -> str:
    effect = (
        "makes the capture fail"
        if finding.effect == "capture-fails"
        else "makes a replay compute something else"
    )
    return f"{finding.rule} {finding.name}{in_place(finding.location)} {effect}"


class _NoGraph(Struct, frozen=True):
    """Stands where a graph would tell more. `device` can make code believe that it is captured.

    `other_path` says why that may round differently, "" where it is code that asks.
    """

    device: Any
    other_path: str = ""


class BuiltStep:
    """A `Replayable` of what a strategy built.

    Its runs start from the session's state. Where what was built is one graph of the whole
    step, they start from the state of that capture, which may have tensors of its own, and an
    emulated graph is asked which operator wrote a tensor.
    """

    def __init__(self, built: Built, session: Session) -> None:
        whole = built.captured if isinstance(built, BuiltWhole) else None
        self.start: Snapshot = whole.start if whole is not None else session.start
        self.graph: Any = whole.graph if whole is not None else _NoGraph(session.device)
        if built.other_path:
            self.graph = _NoGraph(built, built.other_path)
        self.footprint = Footprint({}, {}, {})
        self._built = built
        self._roots = session.target.roots
        self._inputs = Inputs()

    def load(self, inputs: Inputs) -> None:
        """Take the inputs, on memory of their own: a step may write into them."""
        kept = memory_of(named_tensors(self._roots).values())
        self._inputs = clone_inputs(inputs, kept=kept)

    def replay(self) -> None:
        """One call, and a look at what it left behind."""
        outputs = self._built.call(self._inputs)
        self.footprint = self._built.left_behind(self._inputs, outputs)

    def call(self, inputs: Inputs) -> object:
        """One call as a user makes it: nothing is cloned or compared."""
        return self._built.call(inputs)

    def release(self) -> None:
        self._built.release()


def built_again(session: Session, build: Callable[[], Built]) -> BuiltStep | Refusal:
    """What a strategy builds with the modes of torch as they are now; an eager step chooses the kernels before."""
    session.start.restore()
    session.call(session.inputs(0))
    session.start.restore()
    try:
        return BuiltStep(build(), session)
    except CannotBuild as error:
        return Refusal(str(error))
