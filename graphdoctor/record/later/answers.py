"""What the step is told by the machine, by the process and by its environment -> whether another answer decides.

What is measured, such as memory, is told to be far more and then nothing; a mode, to be the other one; a variable
of the environment is unset, and set to each text that code compares with.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import CodeType, ModuleType
from typing import Any

import msgspec
import torch

from graphdoctor.record.host.outside import Answer
from graphdoctor.record.host.replaced_names import standing_in
from graphdoctor.record.later.bounded import bounded
from graphdoctor.record.later.line_trace import LineTrace
from graphdoctor.record.later.sameness import first_difference
from graphdoctor.record.later.search import is_as_usual
from graphdoctor.record.later.side_effects import LeavesStep
from graphdoctor.record.later.trials import Trials
from graphdoctor.target.user_code import is_user_file
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.recording import OF_ENVIRONMENT, HostEvent

_MOST_TEXTS = 8
_LONGEST = 40
_OPEN = ("measures", "configures", "stands")
_SET = (OF_ENVIRONMENT, "gc.", "torch.is_")
_FAR = 1 << 60
_NOT_TRIED = frozenset({"os.cpu_count()", "os.sysconf()"})  # they stay as they are


def is_open(event: HostEvent) -> bool:
    """Whether the user's own code asks, and other answers tell whether it decides by what it is told."""
    place = event.location
    is_asked = event.kind == "outside" and event.detail in _OPEN and event.name not in _NOT_TRIED
    return is_asked and place is not None and is_user_file(place.file)


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
        for text in (None, *_texts(variable, codes)):
            if text != os.environ.get(variable):
                yield partial(_variable_set, variable, text)
        return
    modules = [sys.modules[each] for each in ("os", "resource") if each in sys.modules]
    modules += [gc, torch, torch.cuda, torch.cuda.memory]
    own_name = name.rpartition(".")[2].removesuffix("()")
    asked = {
        id(found): found
        for module in modules
        if callable(found := vars(module).get(own_name, None))
    }
    for change in (_far, _none):
        others = {key: _answering(found, change) for key, found in asked.items()}
        yield partial(_told, roots, others, modules)


def _told(
    roots: Mapping[str, object], others: Mapping[int, object], modules: Sequence[ModuleType]
) -> AbstractContextManager[None]:
    return standing_in(roots, others, *modules)


def _answering(asked: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    """The same function, which tells the user's own code something else, and all others the truth."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        told = asked(*args, **kwargs)
        is_users = is_user_file(sys._getframe(1).f_code.co_filename)
        return change(told) if is_users else told

    return stand_in


def _far(value: Any) -> Any:
    return _changed(value, lambda number: number + _FAR)


def _none(value: Any) -> Any:
    return _changed(value, lambda number: number * 0)


def _changed(value: Any, number: Callable[[Any], Any]) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, tuple):
        items = [_changed(each, number) for each in value]
        return type(value)(items)  # also what os.times() and getrusage() give
    if isinstance(value, dict):
        return {key: _changed(each, number) for key, each in value.items()}
    return value


def _texts(variable: str, codes: Iterable[CodeType]) -> list[str]:
    """What the variable may be compared with: first the texts of code that names it."""
    found: dict[str, None] = {"1": None}
    for code in sorted(codes, key=lambda one: variable not in one.co_consts):
        for const in code.co_consts:
            for each in const if isinstance(const, (tuple, frozenset)) else (const,):
                if isinstance(each, str) and each != variable and len(each) <= _LONGEST:
                    found.setdefault(each)
    return [*list(found)[:_MOST_TEXTS], "0"]


@contextmanager
def _variable_set(variable: str, text: str | None) -> Iterator[None]:
    """The state that is put back after each run has the environment, too."""
    if text is None:
        os.environ.pop(variable, None)
    elif "\0" not in text:
        os.environ[variable] = text
    yield
