"""Code that a program says is its step: a function's name, or `with graphdoctor.step():` -> the step of that code."""

from __future__ import annotations

from types import CodeType

from graphdoctor.target.frames import is_machinery
from graphdoctor.target.program.loop_step import LoopStep
from graphdoctor.target.program.loops import Loop
from graphdoctor.target.program.rebuild import NotRebuilt, variables_of
from graphdoctor.target.program.statements import Span
from graphdoctor.target.user_code import is_user_file


class StepsOfCode:
    """The steps that were asked for, each made once: into `steps`, or its reason into `reasons`."""

    def __init__(self, steps: list[LoopStep], reasons: list[str]) -> None:
        self._steps, self._reasons = steps, reasons
        self._known: dict[int, LoopStep | None] = {}  # by the identity of its code, which is kept

    def step(self, code: CodeType, span: Span | None) -> LoopStep | None:
        """The step of a code object; None where it cannot be run by itself, which is noted once."""
        if id(code) in self._known:
            return self._known[id(code)]
        step = None
        try:
            if span is None:
                raise NotRebuilt(f"The source of {code.co_filename} cannot be read.")
            step = LoopStep.of(Loop(span, variables_of(span), None), "inference")
            self._steps.append(step)
        except NotRebuilt as reason:
            self._reasons.append(str(reason))
        self._known[id(code)] = step
        return step


def is_function(code: CodeType, name: str) -> bool:
    """Whether it is the code of the function `name`, or of one that ends with it and is not torch's.

    A bare name is a function of the user's own files.
    """
    if code.co_name != name.rpartition(".")[2]:  # nearly all are told by this
        return False
    if code.co_qualname != name and not code.co_qualname.endswith(f".{name}"):
        return False
    if is_machinery(code.co_filename):
        return False
    return "." in name or is_user_file(code.co_filename)
