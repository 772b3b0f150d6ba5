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
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count
from types import CodeType, ModuleType
from typing import Any

import msgspec
import torch

from graphdoctor.record.host.outside import Answer, tells_of_machine, who_asks
from graphdoctor.record.host.replaced_names import standing_in
from graphdoctor.record.later.bounded import bounded
from graphdoctor.record.later.line_trace import LineTrace
from graphdoctor.record.later.sameness import first_difference
from graphdoctor.record.later.search import is_as_usual
from graphdoctor.record.later.side_effects import LeavesStep
from graphdoctor.record.later.trials import Trials
from graphdoctor.target.state.walk import Walk, dict_items
from graphdoctor.target.user_code import is_user_file
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.recording import OF_ENVIRONMENT, HostEvent

_MOST_TEXTS = 16
_NUMBERS = ("0", "1", "999")
_LONGEST = 40
_OPEN = ("measures", "configures", "stands")
_SET = (OF_ENVIRONMENT, "gc.", "torch.is_")
_OPENED = "open of "
_FAR = 1 << 60
_NOT_TRIED = frozenset({"os.cpu_count()", "os.sysconf()"})  # they stay as they are


def is_open(event: HostEvent) -> bool:
    """Whether the user's own code asks, or has a package ask, and other answers tell whether it decides by them.

    A variable of the environment that a package asks for by itself is its setting, which nobody changes between steps.
    """
    is_asked = event.kind == "outside" and event.detail in _OPEN and event.name not in _NOT_TRIED
    stack = () if event.name.startswith(OF_ENVIRONMENT) else event.stack
    places = [one for one in (event.location, *stack) if one is not None]
    return is_asked and any(is_user_file(one.file) for one in places)


def tried(events: Sequence[HostEvent], trials: Trials, lines: LineTrace) -> Iterator[HostEvent]:
    """The same events; of those that decide the detail says so."""
    deciding: dict[str, bool] = {}
    for event in events:
        if is_open(event) and event.name not in deciding:
            others = _others(event.name, trials.session.target.roots, lines.codes)
            is_other = any(_is_another_step(trials, lines, each) for each in others)
            deciding[event.name] = is_other and is_as_usual(trials, lines)
        decides = is_open(event) and deciding[event.name]
        answer: Answer = "decides-as-set" if event.name.startswith(_SET) else "decides"
        yield msgspec.structs.replace(event, detail=answer) if decides else event


_Other = Callable[[], AbstractContextManager[None]]


def _is_another_step(trials: Trials, lines: LineTrace, other: _Other) -> bool:
    try:
        with ExitStack() as stack, bounded(lines):
            ran = trials.moved(partial(stack.enter_context, other()))
    except LeavesStep:
        return True
    except GraphDoctorError:  # it cannot be told that
        return False
    return first_difference(trials.usual._replace(switches=()), ran) is not None


def _others(name: str, roots: Mapping[str, object], codes: Iterable[CodeType]) -> Iterator[_Other]:
    if name.startswith(OF_ENVIRONMENT):
        variable = name.removeprefix(OF_ENVIRONMENT)
        for text in (None, *_texts(variable, roots, codes)):
            if text != os.environ.get(variable):
                yield partial(_variable_set, variable, text)
        return
    modules = [sys.modules[each] for each in ("os", "resource") if each in sys.modules]
    modules += [gc, torch, torch.cuda, torch.cuda.memory]
    if name.startswith(_OPENED):
        for change in (_far, _none, _first, _rest):
            yield partial(_reading, change)
        return
    own_name = name.rpartition(".")[2].removesuffix("()")
    asked = {
        id(found): found
        for module in modules
        if callable(found := vars(module).get(own_name, None))
    }
    for change in (_far, _none, _first, _rest):
        others = {key: _answering(found, change) for key, found in asked.items()}
        yield partial(_told, roots, others, modules)


def _told(
    roots: Mapping[str, object], others: Mapping[int, object], modules: Sequence[ModuleType]
) -> AbstractContextManager[None]:
    return standing_in(roots, others, *modules)


def _answering(asked: Callable[..., Any], change: _Change) -> Callable[..., Any]:
    """The same function, which tells the user's own code something else, and all others the truth."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        told = asked(*args, **kwargs)
        return _changed(told, change, count()) if who_asks(sys._getframe(1)) is not None else told

    return stand_in


@contextmanager
def _reading(change: _Change) -> Iterator[None]:
    """Files that tell of the machine have other numbers, for the user's own code and what it asks."""
    original = builtins.open

    def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
        stream = original(file, *args, **kwargs)
        if (
            not tells_of_machine(file)
            or who_asks(sys._getframe(1)) is None
            or not stream.readable()
        ):
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


def _changed(value: Any, change: _Change, at: Iterator[int]) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return change(value, next(at))
    if isinstance(value, tuple):
        items = [_changed(each, change, at) for each in value]
        return type(value)(items)  # also what os.times() and getrusage() give
    if isinstance(value, dict):
        return {key: _changed(each, change, at) for key, each in value.items()}
    return value


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
