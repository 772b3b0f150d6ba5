"""Reduces a wrong replay to the smallest script that still shows it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from keyword import iskeyword
from types import SimpleNamespace
from typing import Any, Literal

import torch

from graphdoctor.device.observe.interpreter import no_collection
from graphdoctor.device.observe.storages import Geometry
from graphdoctor.graphs.capture import device_usable_after_failure
from graphdoctor.graphs.generator import generator_state, set_generator_state
from graphdoctor.measure.audit.captured_operators import (
    Argument,
    Captured,
    CapturedOperator,
    FrozenNumber,
    HostScalar,
)
from graphdoctor.values.locations import Location

_MOST_SECONDS = 50.0
_MOST_LITERALS = 64  # elements of a tensor that are written down
_SMALLEST = (1, 2, 3, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Operand:
    """What an operator got at capture, and what it would get now; both None of what the graph makes itself."""

    then: Any
    now: Any
    name: str
    has_changed: bool


@dataclass(frozen=True, slots=True)
class BlamedOperator:
    """An operator, and its operands just before it runs."""

    operator: CapturedOperator
    operands: dict[Argument, Operand]


class CannotWrite(Exception):
    """No script of these operators: their tensors share memory in a way that it has no words for."""


Fill = Literal["ones", "seed", "literal"]


@dataclass(frozen=True, slots=True)
class _Program:
    operators: tuple[BlamedOperator, ...]
    fill: Fill
    ones: frozenset[int] = frozenset()  # storages that are filled with ones, by number
    sizes: dict[int, int] = field(
        default_factory=dict
    )  # new lengths of dimensions, by the old ones


def smallest_script(
    operators: Sequence[BlamedOperator], shows: Callable[[str], bool]
) -> str | None:
    """A script whose last operator is the last of these; None if no script shows the difference.

    First as few operators as possible, counted from the last, then fewer among these, then smaller and simpler
    tensors. `shows` runs a script.
    """
    end_s = time.perf_counter() + _MOST_SECONDS

    def works(program: _Program) -> bool:
        if time.perf_counter() > end_s:
            return False
        try:
            return shows(_Script(program).text())
        except CannotWrite:
            return False

    program = next(filter(works, _windows(tuple(operators))), None)
    if program is None:
        return None
    for candidate in program.operators[:-1]:
        rest = tuple(each for each in program.operators if each is not candidate)
        fewer = replace(program, operators=rest)
        program = fewer if works(fewer) else program
    arguments = (arg for each in program.operators for arg in each.operator.arguments())
    shapes = (arg.geometry.shape for arg in arguments if isinstance(arg, Captured))
    for size in sorted({size for shape in shapes for size in shape if size > 1}, reverse=True):
        smaller = (
            replace(program, sizes={**program.sizes, size: new}) for new in _SMALLEST if new < size
        )
        program = next(filter(works, smaller), program)
    for number in sorted(_inputs_of(program)):
        simpler = replace(program, ones=program.ones | {number})
        program = simpler if works(simpler) else program
    return _Script(program).text()


def shows_difference(script: str) -> bool:
    """Whether a script runs here and finds that its replay differs from eager."""
    names: dict[str, Any] = {"__name__": "graphdoctor_blame"}
    made = SimpleNamespace(reset=lambda: "graph" in names and names["graph"].reset())
    drawn = torch.get_rng_state(), generator_state()
    try:
        with (
            device_usable_after_failure(made),
            no_collection(),
            torch.no_grad(),
            redirect_stdout(StringIO()),
        ):
            exec(compile(script, "<blame>", "exec"), names)
        return names.get("differs") is True
    except Exception:  # whatever an operator raises that gets inputs of another form
        return False
    finally:
        names.clear()  # the script's function holds them, and would keep the graph until a later capture
        torch.set_rng_state(drawn[0])
        set_generator_state(drawn[1])


def _windows(operators: tuple[BlamedOperator, ...]) -> Iterator[_Program]:
    count = 1
    while True:
        for fill in ("seed", "literal"):
            yield _Program(operators[-count:], fill)
        if count >= len(operators):
            return
        count *= 2


def _inputs_of(program: _Program) -> set[int]:
    arguments = (arg for each in program.operators for arg in each.operator.arguments())
    return {arg.number for arg in arguments if isinstance(arg, Captured)}


@dataclass(slots=True)
class _Variable:
    name: str
    base: Geometry
    then: str = ""  # how it is made, "" of a result
    now: str = ""  # the same after the change, "" without one


class _Script:
    """The text of a program."""

    def __init__(self, program: _Program) -> None:
        self._program = program
        self._names: set[str] = {"torch", "graph", "step", "replayed", "eager", "differs"}
        self._variables: dict[Any, _Variable] = {}
        self._scalars: dict[Argument, _Variable] = {}
        self._lines: list[str] = []
        self._results: list[str] = []

    def text(self) -> str:
        """The whole script. Raises CannotWrite."""
        for each in self._program.operators:
            self._add(each)
        last = self._program.operators[-1].operator
        variables = [*self._variables.values(), *self._scalars.values()]
        made = [each for each in variables if each.then]
        changed = [each for each in made if each.now]
        written = {
            memory.number for each in self._program.operators for memory in each.operator.written
        }
        kept = [v.name for key, v in self._variables.items() if _number(key) in written and v.then]
        undo = [
            "for tensor, value in zip(state, saved):",
            "    tensor.copy_(value)",
        ] if kept else []  # fmt: skip
        body = "\n".join(f"    {line}" for line in self._lines)
        return "\n".join(
            (
                f'"""A replay of {last.entry.facts.name} ({_place(last.entry.location)}) differs from eager."""',
                "",
                "import torch",
                "",
                "torch.manual_seed(0)",
                "torch.set_grad_enabled(False)",
                *(f"{each.name} = {each.then}" for each in made),
                "",
                "",
                "def step():",
                body,
                f"    return {_tuple(self._results)}",
                "",
                "",
                *([f"state = {_tuple(kept)}", "saved = [tensor.clone() for tensor in state]"] if kept else []),
                "step()  # libraries make their handles before a capture",
                *undo,
                "graph = torch.cuda.CUDAGraph()",
                "with torch.cuda.graph(graph):",
                "    replayed = step()",
                *(["# What the program changed:"] if changed else []),
                *(f"captured_{each.name}, {each.name} = {each.name}, {each.now}" for each in changed),
                "graph.replay()",
                "replayed = [tensor.clone() for tensor in replayed]",
                *undo,
                "eager = step()",
                "differs = not all(",
                "    torch.allclose(one, other, rtol=1e-5, atol=0, equal_nan=True)",
                "    for one, other in zip(replayed, eager)",
                ")",
                'print("The replay differs from eager." if differs else "The replay equals eager.")',
                "",
            )
        )  # fmt: skip

    def _add(self, each: BlamedOperator) -> None:
        entry = each.operator.entry
        args = [self._word(arg, each) for arg in entry.args]
        args += [
            'device="cuda"' if name == "device" else f"{name}={self._word(arg, each)}"
            for name, arg in entry.kwargs.items()
            if arg is not None and name not in ("pin_memory", "generator")
        ]
        made = f"result{len(self._lines)}" if len(self._program.operators) > 1 else "result"
        place = _place(entry.location)
        self._lines.append(f"{made} = torch.ops.{entry.facts.name}({', '.join(args)})  # {place}")
        self._results = []
        for position, memory in each.operator.made:
            name = made if position is None else f"{made}[{position}]"
            self._variables[memory.number] = _Variable(name, self._sized(memory.geometry))
            self._results.append(name)
        self._results += [self._tensor(memory, each) for memory in each.operator.written]

    def _word(self, value: Any, each: BlamedOperator) -> str:
        if isinstance(value, Captured):
            return self._tensor(value, each)
        if isinstance(value, HostScalar | FrozenNumber):
            return self._scalar(value, each.operands[value])
        if isinstance(value, list | tuple):
            return f"[{', '.join(self._word(item, each) for item in value)}]"
        if type(value) is float and value - value != 0:
            return f'float("{value}")'
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            return str(value)
        raise CannotWrite

    def _scalar(self, value: HostScalar | FrozenNumber, operand: Operand) -> str:
        known = self._scalars.get(value)
        if known is None:
            if not operand.has_changed:
                number = value.value if isinstance(value, FrozenNumber) else value.frozen.item()
                return (
                    repr(number) if isinstance(value, FrozenNumber) else f"torch.tensor({number!r})"
                )
            form = "torch.tensor({!r})" if isinstance(value, HostScalar) else "{!r}"
            now = operand.now.item() if isinstance(value, HostScalar) else operand.now
            then = operand.then.item() if isinstance(value, HostScalar) else operand.then
            known = self._scalars[value] = _Variable(
                self._named(operand.name, "number"), Geometry(0, (), (), torch.float32),
                form.format(then), form.format(now),
            )  # fmt: skip
        return known.name

    def _tensor(self, memory: Captured, each: BlamedOperator) -> str:
        geometry = self._sized(memory.geometry)
        known = self._variables.get(memory.number)
        if known is None:
            known = self._variables[memory.number] = self._input(memory, each)
        if known.base == geometry:
            return known.name
        if not known.then or memory.number in self._written:
            inside = geometry.dtype == known.base.dtype and not self._program.sizes
            if not inside or geometry.offset < known.base.offset:
                raise CannotWrite
            offset = geometry.offset - known.base.offset
            return f"torch.as_strided({known.name}, {geometry.shape}, {geometry.stride}, {offset})"
        other = self._variables.get(memory)
        if other is None:
            other = self._variables[memory] = self._input(memory, each)
        return other.name

    @property
    def _written(self) -> set[int]:
        operators = self._program.operators
        return {memory.number for each in operators for memory in each.operator.written}

    def _input(self, memory: Captured, each: BlamedOperator) -> _Variable:
        operand = each.operands.get(memory)
        if operand is None:
            raise CannotWrite
        geometry = self._sized(memory.geometry)
        then = self._contents(geometry, operand.then, memory.number)
        now = ""
        if operand.has_changed:
            now = self._contents(geometry, operand.now, None)
        return _Variable(self._named(operand.name, "x"), geometry, then, now)

    def _contents(self, geometry: Geometry, value: torch.Tensor, number: int | None) -> str:
        """An expression for a tensor of this form."""
        shape, dtype = geometry.shape, geometry.dtype
        options = f'dtype={dtype}, device="cuda"'
        is_small = value.numel() <= _MOST_LITERALS
        if number in self._program.ones:
            made = f"torch.ones({shape}, {options})"
        elif self._program.fill == "literal" and is_small:
            part = value[tuple(slice(0, size) for size in shape)].tolist()
            made = f"torch.tensor({part!r}, {options})".replace("inf", 'float("inf")')
            made = made.replace("nan", 'float("nan")')
        elif dtype.is_floating_point:
            made = f'torch.randn({shape}, device="cuda").to({dtype})'
        else:
            made = f"torch.zeros({shape}, {options})"
        if geometry.stride == _dense(shape, None):
            return made
        return f"torch.empty_strided({shape}, {geometry.stride}, {options}).copy_({made})"

    def _sized(self, geometry: Geometry) -> Geometry:
        sizes = self._program.sizes
        if not sizes:
            return geometry
        shape = tuple(sizes.get(size, size) for size in geometry.shape)
        return Geometry(geometry.offset, shape, _dense(shape, geometry.stride), geometry.dtype)

    def _named(self, name: str, otherwise: str) -> str:
        name = re.sub(r"""\[['"](\w+)['"]\]""", r".\1", name)  # a key is a name too
        word = name.rpartition(".")[2].partition("[")[0]
        word = word if word.isidentifier() and not iskeyword(word) else otherwise
        number, chosen = 1, word
        while chosen in self._names:
            number, chosen = number + 1, f"{word}{number + 1}"
        self._names.add(chosen)
        return chosen


def _tuple(names: list[str]) -> str:
    return f"({', '.join(names)}{',' * (len(names) == 1)})"


def _number(key: Any) -> int:
    return key.number if isinstance(key, Captured) else int(key)


def _dense(shape: tuple[int, ...], like: tuple[int, ...] | None) -> tuple[int, ...]:
    """Strides without gaps, in the order of others, with the same repeated dimensions."""
    order = range(len(shape))
    by_step = sorted(order, key=lambda d: (like[d], -d) if like is not None else (-d, 0))
    strides, step = [0] * len(shape), 1
    for dimension in by_step:
        if like is not None and like[dimension] == 0:
            continue
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(strides)


def _place(location: Location | None) -> str:
    if location is None:
        return "an unknown line"
    return f"{location.file}:{location.line}".replace('"', "'")
