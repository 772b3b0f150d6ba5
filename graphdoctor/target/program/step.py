"""The steps that a program repeats, calls of a module among them, and where a called module is bound."""

from __future__ import annotations

import ast
import inspect
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median
from types import CodeType
from typing import Any

import torch

from graphdoctor.source.trees import WHOLE_FILE, Owner, is_scope, owner_of, tree_of, walk_until
from graphdoctor.target.program.events import At, location_of
from graphdoctor.target.program.saved_steps import SavedSteps, Turn, in_turn
from graphdoctor.target.program.statements import blocks_to
from graphdoctor.target.roots import roots_among
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import is_user_file
from graphdoctor.values.locations import Location
from graphdoctor.values.program import CalledModule, NotReached
from graphdoctor.values.report import Mode, Report


def gradient_mode() -> Callable[[], AbstractContextManager[Any]]:
    """What puts a block into the mode of the caller: inference mode, no gradients, or gradients.

    `torch.inference_mode(False)` is none of them, since it turns gradients on.
    """
    if torch.is_inference_mode_enabled():
        return torch.inference_mode
    return torch.enable_grad if torch.is_grad_enabled() else torch.no_grad


_CAPTURED = "it is captured already"
_WRAPPERS = {
    "OptimizedModule": "it is compiled by torch.compile, which captures graphs itself where"
    ' mode="reduce-overhead" is given',
    "DistributedDataParallel": "it synchronizes gradients while its backward pass runs, which no graph of"
    " one module does",
    "DataParallel": "it copies its module in each call",
    "ScriptModule": "it is TorchScript",
}

_After = tuple[int, int]  # the last line of a statement, and the column in which it begins
# What is bound, to which expression, in which file, after which statement.
Binding = tuple[object, str, str, _After]


def called_module(
    module: torch.nn.Module, places: Sequence[At], *, is_compiled: bool
) -> CalledModule:
    """What the program calls it, and the line after which it can be put in another's place."""
    kind = type(module).__name__
    trains = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
    kinds = ["OptimizedModule"] if is_compiled else [c.__name__ for c in type(module).__mro__]
    if reason := next((_WRAPPERS[name] for name in kinds if name in _WRAPPERS), ""):
        return CalledModule(kind, trains=trains, reason=reason)
    found = next(_bindings(module, places), None)
    if found is None:
        reason = "no statement of the program was found that puts it into a variable"
        return CalledModule(kind, trains=trains, reason=reason)
    value, expression, file, (line, column) = found
    if value is not module:
        return CalledModule(kind, trains=trains, reason=_CAPTURED)
    return CalledModule(
        kind, expression=expression, file=file, line=line, column=column, trains=trains
    )


def _bindings(module: torch.nn.Module, places: Sequence[At]) -> Iterator[Binding]:
    """Variables of the program's own functions and files before attributes of its objects; outermost first."""
    own = [
        at for at in reversed(places) if at.frame is not None and is_user_file(at.code.co_filename)
    ]
    for at in own:
        yield from _variables(module, at)
    for at in own:
        yield from _attributes(module, at)


def _variables(module: torch.nn.Module, at: At) -> Iterator[Binding]:
    assert at.frame is not None
    file, is_local = at.code.co_filename, at.code.co_name != WHOLE_FILE
    if is_local:
        for name, value in _named(module, at.frame.f_locals):
            if after := _last_binding(owner_of(at.code), name, before=at.line):
                yield value, name, file, after
    for name, value in _named(module, at.frame.f_globals):
        if after := _last_binding(tree_of(file), name, before=None if is_local else at.line):
            yield value, name, file, after


def _named(module: torch.nn.Module, names: Mapping[str, object]) -> list[tuple[str, object]]:
    """Under which names it stands there, also captured: such a module shares its attributes."""
    own = vars(module)
    held = ((n, v) for n, v in names.items() if issubclass(type(v), torch.nn.Module))
    return [(n, v) for n, v in held if v is module or vars(v) is own]


def _attributes(module: torch.nn.Module, at: At) -> Iterator[Binding]:
    """`self.name`, where a method of the object's own class puts it there."""
    assert at.frame is not None
    holder = at.frame.f_locals.get("self")
    if holder is None:
        return
    held = getattr(holder, "__dict__", {})
    named = {**held, **held.get("_modules", {})}
    for name, value in _named(module, named):
        for made in (getattr(holder, "__init__", None), getattr(holder, "setup", None)):
            code = getattr(inspect.unwrap(made) if callable(made) else None, "__code__", None)
            if not isinstance(code, CodeType) or not is_user_file(code.co_filename):
                continue
            if after := _last_binding(owner_of(code), name, before=None, of_self=True):
                yield value, f"self.{name}", code.co_filename, after


def _last_binding(
    owner: Owner | None, name: str, *, before: int | None, of_self: bool = False
) -> _After | None:
    """The statement that binds it last, in a block that leads to line `before`; a branch as a whole."""
    if owner is None:
        return None
    blocks = [(owner.body, False)] if before is None else blocks_to(owner, before)
    found = None
    for block, repeats in blocks:
        for statement in block:
            end = statement.end_lineno or statement.lineno
            if before is not None and end >= before:
                break
            # In a loop, `model = model.train()` would put what was put there into itself.
            names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            reads = any(node.id == name and isinstance(node.ctx, ast.Load) for node in names)
            if not (repeats and reads) and _binds(statement, name, of_self=of_self):
                found = end, statement.col_offset
    return found


def _binds(statement: ast.stmt, name: str, *, of_self: bool) -> bool:
    for node in walk_until([statement], is_scope):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=bound, ctx=ast.Store()) if of_self:
                if bound == name:
                    return True
            case ast.Name(id=bound, ctx=ast.Store()) if bound == name and not of_self:
                return True
    return False


_MOST_PERIODS = 64
Outcome = Report | NotReached | str | None  # of a diagnosis: a sentence says why there is none


@dataclass
class SeenStep:
    """A kind of step. `begun` counts; `wall_s` is the host's time in it, without graphdoctor's own."""

    name: str
    location: Location
    last_line: int
    mode: Mode
    begun: int = 0
    wall_s: float = 0.0
    entered_at: float | None = None
    saved: SavedSteps | None = None
    is_done: bool = False
    reason: str = ""
    outcome: Outcome = None  # what the diagnosis gave
    waits: Counter[tuple[Location | None, str]] = field(default_factory=Counter)
    gaps: int = 0  # times that the program was watched from one such step to the next
    is_recorded: bool = False  # the step that runs now, or the last one
    plain_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_PERIODS))
    recorded_s: list[float] = field(default_factory=list)
    _since_s: float | None = None
    modules: dict[int, CalledModule] = field(default_factory=dict)  # by identity
    caller: Location | None = None
    host_values: set[str] = field(default_factory=set)  # variables: arrays, and floats that change
    passes_per_step: int = (
        1  # through its statements, more than one where gradients are accumulated
    )
    knows_passes: bool = True  # else the optimizer's next step shows how many
    is_incomplete: bool = False  # it was run again, and no optimizer stepped
    is_on_gpu: bool = False  # a module that it calls has a parameter there

    def begins(self, now_s: float) -> None:
        """One more, at a time of the program's own clock, which stands still during diagnoses."""
        if self._since_s is not None:
            periods = self.recorded_s if self.is_recorded else self.plain_s
            periods.append(now_s - self._since_s)
        self.begun += 1
        self._since_s, self.is_recorded = now_s, False

    @property
    def slowdown(self) -> float | None:
        """How many times as long as the others the recorded ones took, from one beginning to the next."""
        if not self.plain_s or not self.recorded_s:
            return None
        return median(self.recorded_s) / max(median(self.plain_s), 1e-9)

    def note_call(
        self, module: torch.nn.Module, places: Sequence[At], *, is_compiled: bool
    ) -> None:
        """The step calls this module from outside any other."""
        if self.caller is None and places:
            own = next((at for at in places if is_user_file(at.code.co_filename)), places[0])
            self.caller = location_of(own)
        if id(module) not in self.modules and any(True for _ in module.parameters()):
            self.modules[id(module)] = called_module(module, places, is_compiled=is_compiled)
            self.is_on_gpu = self.is_on_gpu or any(each.is_cuda for each in module.parameters())

    def leave(self) -> None:
        """The step has ended."""
        if self.saved is not None and not self.is_done:
            self.saved.leave()

    def target(self, *, iterations: int) -> Target:
        """The step, with the program's own inputs in their order. Raises NotRebuilt."""
        raise NotImplementedError

    @property
    def beginnings(self) -> int:
        return len(self.saved.beginnings) if self.saved is not None else 0


@dataclass
class CallStep(SeenStep):
    """Calls of one module from one line, outside any other module and any training step."""

    module: torch.nn.Module = None  # type: ignore[assignment]

    @classmethod
    def of(
        cls, module: torch.nn.Module, place: Location, earlier_s: Sequence[float] = ()
    ) -> CallStep:
        """`earlier_s` are the times of calls that were not known to be such."""
        name = f"{type(module).__name__} at {os.path.basename(place.file)}:{place.line}"
        begun, wall_s = len(earlier_s), sum(earlier_s)
        return cls(name, place, place.line, "inference", begun, wall_s, module=module)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what the module is called with now."""
        inputs = Inputs(args, kwargs)
        if self.saved is None:
            held = roots_among(inputs, self.module.forward)
            self.saved = SavedSteps.begin({"model": self.module, **held})
        self.saved.add(inputs, {}, {})

    def target(self, *, iterations: int) -> Target:
        """The call under the modes that are on now, with the program's own inputs in their order."""
        assert self.saved is not None
        batches = [each.inputs for each in self.saved.beginnings[:iterations]]
        writes = self.saved.writes()
        mode, module = gradient_mode(), self.module
        if any(writes):
            batches = [Inputs((Turn(i), *b.args), b.kwargs) for i, b in enumerate(batches)]

        def run(*args: Any, **kwargs: Any) -> object:
            if args and isinstance(args[0], Turn):
                for write in writes[args[0].number]:
                    write()
                args = args[1:]
            with mode():
                return module(*args, **kwargs)

        file = os.path.basename(self.location.file)
        return Target(
            name=self.name,
            file=self.location.file,
            entry=f"the call in line {self.location.line} of {file}, as the program made it",
            mode="inference",
            step=run,
            fresh_inputs=in_turn(batches),
            roots=self.saved.roots,
            notes=("the inputs are the program's own calls, in their order",),
            is_warm=True,
            rebound=tuple(sorted(self.saved.rebound)),
        )


def may_be_trained(module: torch.nn.Module) -> bool:
    """Whether a call of it may belong to a training step: it trains, or it has nothing to train."""
    parameters = [*module.parameters()]
    return not parameters or any(each.requires_grad for each in parameters)
