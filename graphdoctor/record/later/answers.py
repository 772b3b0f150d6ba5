"""What the step is told by the machine, by the process and by its environment -> whether another answer decides.

What is measured, such as memory, is told to be far more and then nothing: all of it, the first number alone, which may
be a part of the others or their sum, and the others alone. A mode is told to be the other one; a variable of the
environment is unset, and set to each text that code or state may compare it with.
"""

from __future__ import annotations

import builtins
import gc
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import CodeType, FrameType, FunctionType
from typing import Any

import msgspec
import torch

from graphdoctor.record.host.asked import ASKED
from graphdoctor.record.host.outside import tells_of_machine, who_asks
from graphdoctor.record.host.replaced_names import standing_in
from graphdoctor.record.later.held_by_others import others_of as held_by_others
from graphdoctor.record.later.line_trace import LineTrace
from graphdoctor.record.later.occasions import Condition, are_as_usual
from graphdoctor.record.later.search import is_as_usual
from graphdoctor.record.later.trials import Trials
from graphdoctor.target.frames import is_own
from graphdoctor.target.state.kinds.written import dict_items
from graphdoctor.target.state.walk import Walk
from graphdoctor.target.user_code import is_user_file
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.host_events import OF_ENVIRONMENT, PythonEvent

_MOST_TEXTS = 16
_NUMBERS = ("0", "1", "999")
_LONGEST = 40
_FLAGS = ("is", "are_")
_OPEN = ("measures", "configures", "stands", "switch", "either")
_SET = ("configures", "switch")
_OPENED = "open of "
_FAR = 1 << 60
_NOT_TRIED = frozenset({"os.cpu_count()", "os.sysconf()"})  # they stay as they are


def is_open(event: PythonEvent) -> bool:
    """Whether the user's own code asks, or has a package ask, and other answers tell whether it decides by them.

    A variable of the environment that a package asks for by itself is its setting, which nobody changes between steps.
    """
    is_asked = event.kind == "outside" and event.detail in _OPEN and event.name not in _NOT_TRIED
    stack = () if event.name.startswith(OF_ENVIRONMENT) else event.stack
    places = [one for one in (event.location, *stack) if one is not None]
    return is_asked and any(is_user_file(one.file) for one in places)


def untried(event: PythonEvent) -> PythonEvent:
    """The event where no other answer can be tried."""
    is_for_nobody = event.kind == "outside" and event.detail == "either"
    return msgspec.structs.replace(event, detail="decides") if is_for_nobody else event


def tried(events: Sequence[PythonEvent], trials: Trials, lines: LineTrace) -> Iterator[PythonEvent]:
    """The same events; of those that decide the detail says so. Then what others hold that decides."""
    deciding: dict[str, bool] = {}
    roots = trials.session.target.roots
    for event in events:
        if not is_open(event):
            yield untried(event)
            continue
        if event.name not in deciding:
            told: list[object] = []
            others = _others(event, roots, lines.codes, told)
            is_either = event.detail == "either"
            deciding[event.name] = _decides(trials, lines, others, is_either=is_either) or (
                is_either and not told
            )
        answer: str = "decides-as-set" if event.detail in _SET else "decides"
        if not deciding[event.name]:
            answer = "stands" if event.detail == "either" else event.detail
        yield msgspec.structs.replace(event, detail=answer)
    found: dict[str, list[Condition]] = {}
    for name, others_here in held_by_others(roots):
        found.setdefault(name, []).append(partial(standing_in, roots, others_here))
    for name, conditions in found.items():
        if _decides(trials, lines, conditions, is_either=False):
            yield PythonEvent(name, kind="outside", detail="decides")


def _decides(
    trials: Trials, lines: LineTrace, others: Iterable[Condition], *, is_either: bool
) -> bool:
    """Whether one of these makes it another step; `is_either`: or is not known to leave it as it is."""
    for each in others:
        try:
            is_other = not are_as_usual(trials, lines, each)
        except GraphDoctorError:  # it cannot be that
            is_other = is_either
        if is_other:
            return is_as_usual(trials, lines) or is_either
    return False


def _others(
    event: PythonEvent, roots: Mapping[str, object], codes: Iterable[CodeType], told: list[object]
) -> Iterator[Condition]:
    name = event.name
    if name.startswith(OF_ENVIRONMENT):
        variable = name.removeprefix(OF_ENVIRONMENT)
        for text in (None, *_texts(variable, roots, codes)):
            if text != os.environ.get(variable):
                yield partial(_variable_set, variable, text)
        return
    if name.startswith(_OPENED):
        yield from (partial(_reading, change) for change in _CHANGES)
        return
    asked = [one for one in ASKED if one.name == name]
    owners = [one.holder for one in asked]
    # A device may stand in for torch.cuda.
    functions = [f for one in asked for f in (one.function, getattr(one.owner, one.attribute))]
    is_flag = event.detail == "either" or name.rpartition(".")[2].startswith(_FLAGS)
    changes = _CHANGES[:1] if is_flag else _CHANGES
    for change in _ELSEWHERE if name == "id()" else changes:
        yield partial(_told, roots, functions, change, owners, told)


@contextmanager
def _told(
    roots: Mapping[str, object],
    functions: Iterable[Any],
    change: _Change,
    owners: Sequence[Any],
    told: list[object],
) -> Iterator[None]:
    """`told` is what was told otherwise."""
    lasting = _lasting(roots) if change in _ELSEWHERE else frozenset()
    others = {id(one): _answering(_Otherwise(one, change, lasting, told)) for one in functions}
    with standing_in(roots, others, *owners):
        yield


def _lasting(roots: Mapping[str, object]) -> frozenset[int]:
    """Where objects lie that are there before the step, and stay there."""
    held = (value for _, value, _ in Walk(roots))
    return frozenset(map(id, (one for each in (held, gc.get_objects()) for one in each)))


@dataclass(frozen=True, slots=True)
class _Otherwise:
    """A function, and what it tells the user's own code; all others get the truth."""

    asked: Callable[..., Any]
    change: _Change
    lasting: frozenset[int]
    told: list[object]

    def tell(self, frame: FrameType, truth: Any) -> Any:
        if truth in self.lasting if self.lasting else who_asks(frame) is None:
            return truth
        self.told.append(truth)
        return _changed(truth, self.change, count())


def _answering(otherwise: _Otherwise) -> Callable[..., Any]:
    """A function, since a class may hold it as a method; a walk over the state looks into no `_Otherwise`."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return otherwise.tell(sys._getframe(1), otherwise.asked(*args, **kwargs))

    return stand_in


@contextmanager
def _reading(change: _Change) -> Iterator[None]:
    """Files that tell of the machine have other numbers, for the user's own code and what it asks."""
    original = builtins.open

    def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
        stream = original(file, *args, **kwargs)
        asking: FrameType | None = sys._getframe(1)
        while asking is not None and is_own(asking.f_code.co_filename):  # which stands in, too
            asking = asking.f_back
        if not tells_of_machine(file) or who_asks(asking) is None or not stream.readable():
            return stream
        with stream:
            text, at = stream.read(), count()
        is_text = isinstance(text, str)
        known = text if is_text else text.decode("latin-1")
        other = re.sub(r"\d+", lambda found: str(_changed(int(found[0]), change, at)), known)
        return io.StringIO(other) if is_text else io.BytesIO(other.encode("latin-1"))

    builtins.open = opened
    try:
        yield
    finally:
        builtins.open = original


_Change = Callable[[Any, int], Any]  # of a number and its place among all that are told


def _far(number: Any, at: int) -> Any:
    return number + _FAR


def _none(number: Any, at: int) -> Any:
    return number * 0


def _first(number: Any, at: int) -> Any:
    return number if at == 0 else number * 0


def _rest(number: Any, at: int) -> Any:
    return number * 0 if at == 0 else number


def _elsewhere(by: int, number: Any, at: int) -> Any:
    return number * _SPREAD + by


def _backward(number: Any, at: int) -> Any:
    return _FAR - number


_CHANGES: tuple[_Change, ...] = (_far, _none, _first, _rest)
# Two objects never lie in one place, but in any order, and at any distance from a number that many divide.
_SPREAD = 1 << 14
_ELSEWHERE: tuple[_Change, ...] = (
    *(partial(_elsewhere, by) for by in (0, 16, 32, 48)),
    _backward,
)


def _changed(value: Any, change: _Change, at: Iterator[int]) -> Any:
    """Another answer of the same kind; of a function or none, whether there is one."""
    if value is None or isinstance(value, FunctionType):
        return _nothing if change is _far else None
    if isinstance(value, bool):
        return not value
    if isinstance(value, torch.dtype):
        return _DTYPES[change]
    if isinstance(value, set):
        return signal.valid_signals() if change is _far else set()
    if isinstance(value, (int, float)):
        return change(value, next(at))
    if isinstance(value, tuple):
        items = [_changed(each, change, at) for each in value]
        return type(value)(items)  # also what os.times() and getrusage() give
    if isinstance(value, list):
        return [_changed(each, change, at) for each in value]
    if isinstance(value, dict):
        return {key: _changed(each, change, at) for key, each in value.items()}
    return value


def _nothing(*args: Any) -> None:
    """Stands for a function that traces."""


_DTYPES: dict[_Change, torch.dtype] = {
    _far: torch.float64,
    _none: torch.float16,
    _first: torch.bfloat16,
    _rest: torch.float32,
}


def _texts(variable: str, roots: Mapping[str, object], codes: Iterable[CodeType]) -> list[str]:
    """What the variable may be compared with: first the texts of code that names it, then those of the state."""
    found: dict[str, None] = {}
    for code in sorted(codes, key=lambda one: variable not in one.co_consts):
        for const in code.co_consts:
            for each in const if isinstance(const, (tuple, frozenset)) else (const,):
                if isinstance(each, str) and each != variable and len(each) <= _LONGEST:
                    found.setdefault(each)
    for _, value, shown in Walk(roots, with_empty=False):
        held = dict_items(value) if shown and isinstance(value, dict) else [(value, None)]
        for each, _ in held:
            if shown and isinstance(each, str) and each != variable and len(each) <= _LONGEST:
                found.setdefault(each)
    return [*_NUMBERS, *(one for one in found if one not in _NUMBERS)][:_MOST_TEXTS]


@contextmanager
def _variable_set(variable: str, text: str | None) -> Iterator[None]:
    """The state that is put back after each run has the environment, too."""
    if text is None:
        os.environ.pop(variable, None)
    elif "\0" not in text:
        os.environ[variable] = text
    yield
