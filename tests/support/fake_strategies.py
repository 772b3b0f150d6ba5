"""Strategies for tests: each goes one way that a strategy can go, on any step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from graphdoctor.estimate import Regions
from graphdoctor.graphs.footprint import Footprint, footprint
from graphdoctor.graphs.whole_step import CapturedStep, capture_whole_step
from graphdoctor.record.session import Session
from graphdoctor.strategies.strategy import Built, CannotBuild, Known, Strategy
from graphdoctor.strategies.whole import BuiltWhole
from graphdoctor.target import Inputs


class BuiltEager(Built):
    """Calls the step itself, and does something to what it returns."""

    def __init__(self, session: Session, change: Callable[[Any], Any]) -> None:
        self.session = session
        self.change = change
        self.is_released = False

    def call(self, inputs: Inputs) -> object:
        return self.change(self.session.call(inputs))

    def left_behind(self, inputs: Inputs, outputs: object) -> Footprint:
        return footprint(self.session.target.roots, inputs, outputs)

    def release(self) -> None:
        self.is_released = True


class Fake(Strategy):
    """The eager step, called unlike a graph: a strategy that is right and brings nothing."""

    name = "fake"
    title = "the step as it is"
    compiles = False
    is_ours = True

    def reason_against(self, known: Known) -> str:
        return ""

    def regions(self, known: Known) -> Regions | None:
        operators = [op.index for op in known.iteration.ops]
        middle = len(operators) // 2
        return (tuple(operators[:middle]), tuple(operators[middle:]))

    def build(self, session: Session, known: Known) -> BuiltEager:
        self.built = BuiltEager(session, self.change)
        return self.built

    def code(self, known: Known) -> str:
        return "fast = step\n"

    def change(self, outputs: Any) -> Any:
        return outputs


class Wrong(Fake):
    name = "wrong"

    def change(self, outputs: Any) -> Any:
        return outputs + 1


class Rounding(Fake):
    """A comparator whose answers are a little off, as those of generated code."""

    name = "rounding"
    is_ours = False

    def change(self, outputs: Any) -> Any:
        return outputs * (1 + 3e-5)


class Unfit(Fake):
    name = "unfit"

    def reason_against(self, known: Known) -> str:
        return "it takes inference only"


class Refusing(Fake):
    name = "refusing"

    def build(self, session: Session, known: Known) -> BuiltEager:
        raise CannotBuild("the step has no optimizer")


class BuiltOnce(Fake):
    """Refuses to be built a second time."""

    name = "built-once"

    def build(self, session: Session, known: Known) -> BuiltEager:
        if hasattr(self, "built"):
            raise CannotBuild("it was built already")
        return super().build(session, known)


class Synchronizing(Fake):
    """Tries to capture what no capture allows."""

    name = "synchronizing"

    def build(self, session: Session, known: Known) -> BuiltEager:
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            session.call(session.inputs(0))
            torch.cuda.synchronize()
        raise AssertionError("the capture was allowed")


class Greedy(Fake):
    name = "greedy"

    def build(self, session: Session, known: Known) -> BuiltEager:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


class Broken(Fake):
    """Fails before anything is built."""

    name = "broken"

    def regions(self, known: Known) -> Regions | None:
        raise KeyError("module1")


class BreaksInCall(Fake):
    name = "breaks-in-call"

    def change(self, outputs: Any) -> Any:
        raise ZeroDivisionError("division by zero")


class Spoiling(Fake):
    """Leaves the model changed, which trying has to put right."""

    name = "spoiling"

    def build(self, session: Session, known: Known) -> BuiltEager:
        for root in session.target.roots.values():
            if isinstance(root, torch.nn.Module):
                with torch.no_grad():
                    next(root.parameters()).add_(1.0)
        return super().build(session, known)


class Exiting(Fake):
    name = "exiting"

    def build(self, session: Session, known: Known) -> BuiltEager:
        print("the last words")
        os._exit(7)


class Killed(Fake):
    name = "killed"

    def build(self, session: Session, known: Known) -> BuiltEager:
        os.abort()


class Hanging(Fake):
    name = "hanging"

    def build(self, session: Session, known: Known) -> BuiltEager:
        time.sleep(600)
        raise AssertionError("it was not ended")


class Logging(Fake):
    """Writes down that it was built, by which process, and what that could read from its input."""

    name = "logging"

    def build(self, session: Session, known: Known) -> BuiltEager:
        with Path(os.environ["GRAPHDOCTOR_TEST_LOG"]).open("a") as log:
            log.write(f"{os.getpid()} {sys.stdin.read() or 'nothing'}\n")
        return super().build(session, known)


class Compiling(Fake):
    """Stands for what generates code."""

    name = "compiling"
    compiles = True

    def build(self, session: Session, known: Known) -> BuiltEager:
        raise AssertionError("a compiler was run on the emulated device")


class OneGraph(Fake):
    name = "one-graph"

    def build(self, session: Session, known: Known) -> Any:
        session.start.restore()
        made = capture_whole_step(session.target, warmup=0, now=session.start)
        assert isinstance(made, CapturedStep)
        return BuiltWhole(made)
