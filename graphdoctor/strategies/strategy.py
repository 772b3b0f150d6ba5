"""What a strategy is: a way to run a step faster, that says whether it fits and what code it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from graphdoctor.estimate import NO_CALLS, Calls, Regions
from graphdoctor.graphs.footprint import Footprint
from graphdoctor.proof.twins import EagerRuns
from graphdoctor.record.session import Session
from graphdoctor.rules.causes.align import align
from graphdoctor.target import Inputs
from graphdoctor.values.finding import Finding
from graphdoctor.values.recording import Iteration, Op
from graphdoctor.values.report import Mode

_Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Varying:
    """Operators by index, of which a CUDA graph would hold one of several shapes.

    `by_inputs`: the shapes of the step's inputs vary too. Otherwise the shapes come from its state or from values.
    """

    ops: frozenset[int] = frozenset()
    by_inputs: bool = False


def varying_shapes(iterations: Sequence[Iteration]) -> Varying:
    """What the last iteration does with shapes that another one does not have there."""
    *others, last = iterations
    ops = frozenset(
        last.ops[mine].index
        for other in others
        for theirs, mine in align(other.ops, last.ops)
        if theirs is not None and mine is not None
        if _shapes(other.ops[theirs]) != _shapes(last.ops[mine])
    )
    return Varying(ops, len({one.input_shapes for one in iterations}) > 1)


def _shapes(op: Op) -> _Shapes:
    return tuple(use.shape for use in (*op.inputs, *op.outputs))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Known:
    """What the analysis found out before any strategy is tried; one of its kind, for one analysis.

    `safe_modules` are the paths of the outermost modules whose forward and backward can be
    captured by themselves, as `Plan.safe_modules` has them. `iteration` is a recorded steady-state
    iteration as it runs while captured, and `varying` its operators that work on other shapes in
    other iterations. `ran` are the eager iterations, where their bits were noted.
    """

    mode: Mode
    roots: Mapping[str, object]
    findings: tuple[Finding, ...]
    safe_modules: tuple[str, ...]
    iteration: Iteration
    varying: Varying = field(default_factory=Varying)
    ran: EagerRuns | None = None


class Captured(Struct, frozen=True):
    """Which recorded operators are in graphs, and the calls that the graphs take."""

    regions: tuple[tuple[int, ...], ...]
    calls: Calls


class Built(Protocol):
    """A step made faster: the same step, callable with any inputs of the described shapes.

    Its class derives from this one. Between calls the target's own step runs unchanged: a call removes
    whatever it installed in modules. `note` is a remark about the result for the report. `other_path`
    says why eager rounds differently when it runs inside `assuming_capture()`.
    """

    note: str = ""
    other_path: str = ""

    def call(self, inputs: Inputs) -> object:
        """One step on these inputs; gives what the target's step gives.

        Outputs may be overwritten by the next call. Raises `InputMismatch` for inputs that the
        graph cannot be given.
        """
        ...

    def left_behind(self, inputs: Inputs, outputs: object) -> Footprint:
        """The tensors and values that a call leaves behind, to compare with eager's.

        Where no Python runs in a call, these are the ones of the run that was captured.
        """
        ...

    def assuming_capture(self) -> AbstractContextManager[None]:
        """Inside the block, the target's own step runs as the graphs do; used if `other_path` is set."""
        return nullcontext()

    def holds(self, known: Known) -> Captured | None:
        """What was captured, to predict from; None if that is what `Strategy.regions` planned."""
        return None

    def release(self) -> None:
        """Free graphs and memory, and restore everything that was replaced."""
        ...


class CannotBuild(Exception):
    """A strategy that this step refuses: the reason in one sentence. `__cause__` has the error."""


class Strategy(Protocol):
    """One way to make a step faster: its class derives from this one.

    `compiles`: it generates code, which needs a real GPU and takes long. `is_ours`: graphdoctor
    may recommend it; the others are there to compare with. `has_graphs`: its compiler makes CUDA
    graphs by itself, or leaves them out. `with_eager_kernels` names the strategy that makes the same
    graphs of eager's kernels, where this one's are those that a compiler fuses.
    """

    name: str
    title: str
    compiles: bool = False
    is_ours: bool = True
    has_graphs: bool = False
    with_eager_kernels: str = ""

    def reason_against(self, known: Known) -> str:
        """Why it cannot take this step, in one sentence; "" where it can be tried."""
        ...

    def regions(self, known: Known) -> Regions | None:
        """Which recorded operators would run inside graphs, to predict from; None: cannot say."""
        ...

    def calls(self, known: Known) -> Calls:
        """What it calls in a step, where that costs the host more than copies and launches of graphs."""
        return NO_CALLS

    def plan(self, known: Known) -> str:
        """What it would capture, where it can say so beforehand: a line for each graph and part."""
        return ""

    def build(self, session: Session, known: Known) -> Built:
        """Warm up, compile and capture. State is afterwards what it was before.

        Raises `CannotBuild`, or whatever torch raises, where it does not come about.
        """
        ...

    def code(self, known: Known) -> str:
        """Lines of Python that a person pastes to use it."""
        ...
