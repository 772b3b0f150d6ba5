"""`%load_ext graphdoctor` adds the magic `%%graphdoctor`, which diagnoses a cell of a notebook as a step."""

from __future__ import annotations

import ast
import functools
import io
import shlex
import symtable
import sys
from contextlib import redirect_stderr, redirect_stdout
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from graphdoctor.cli import Parser
from graphdoctor.values.errors import GraphDoctorError, UsageError, UserCodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphdoctor.reporters.for_python import Report

MAGIC = "graphdoctor"
_NAME = "cell"


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext graphdoctor` calls."""

    def magic(line: str, cell: str | None = None) -> Report:
        return _analyzed(shell, line if cell is not None else "", line if cell is None else cell)

    magic.__doc__ = _Options().format_help()
    shell.register_magic_function(magic, magic_kind="line_cell", magic_name=MAGIC)


def _analyzed(shell: Any, line: str, cell: str) -> Report:
    """The report of a cell; an error is one sentence in the notebook, without our own frames."""
    from IPython.core.error import UsageError as ShownInOneLine

    from graphdoctor.pipeline import analyze
    from graphdoctor.pipeline.of_target import CellNames

    cell = shell.transform_cell(cell)
    # Its last input is this cell; the count of executions may be ahead of it already.
    file = shell.compile.cache(cell, len(shell.user_ns["In"]) - 1)
    named = CellNames([file])
    try:
        args = _Options().parse_args(shlex.split(line))
        step, inputs = step_of(cell, shell.user_ns, file=file)
        out, err = _streams[:] = _FirstRun(sys.stdout), _FirstRun(sys.stderr)
        shown = _shown_once(step)
        with redirect_stdout(out), redirect_stderr(err):
            return analyze(
                shown if inputs else _target_of(shown),
                *inputs,
                mode=args.mode,
                device=args.device,
                gpu=args.gpu,
                vary_inputs=args.inputs == "vary",
                strategies=None if args.strategies else (),
            )
    except UserCodeError as error:
        raise ShownInOneLine(named.text(f"{error}\n{error.frames}".rstrip())) from None
    except (GraphDoctorError, SyntaxError, ValueError) as error:
        raise ShownInOneLine(named.text(str(error))) from None


class _FirstRun(io.TextIOBase):
    """A stream that shows what the first run of the step writes: the analysis runs it several times."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.runs = stream, 0

    def write(self, text: str) -> int:
        return self.stream.write(text) if self.runs <= 1 else len(text)

    def flush(self) -> None:
        self.stream.flush()


# Those of the cell that runs. A step that held them would have them as its state.
_streams: list[_FirstRun] = []


def _shown_once(step: Callable[..., object]) -> Callable[..., object]:
    """The same step, whose runs the streams count."""

    @functools.wraps(step)
    def cell(*inputs: object) -> object:
        for stream in _streams:
            stream.runs += 1
        return step(*inputs)

    return cell


def step_of(cell: str, names: dict[str, Any], *, file: str) -> tuple[FunctionType, list[Any]]:
    """The cell as a function, and its inputs: the tensors of the notebook that it reads.

    All else is found in the notebook when the step runs. What the cell binds is its own, and the
    value of its last expression is the step's output. Raises SyntaxError.
    """
    import torch

    tree = ast.parse(cell, filename=file)
    if not tree.body:
        raise ValueError("the cell is empty: write the step into it, such as `model(x)`")
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        tree.body[-1] = ast.copy_location(ast.Return(last.value), last)
    own, free = _names(cell, file)
    inputs = [
        name for name in sorted(own | free)
        if isinstance(names.get(name), torch.Tensor) and not isinstance(names[name], torch.nn.Parameter)
    ]  # fmt: skip
    # Bound in the cell, and perhaps read before: what the notebook has of it is where it begins.
    begun = [name for name in sorted(own) if name in names and name not in inputs]
    code = _code(tree.body, [*inputs, *begun], file)
    step = FunctionType(code, names, _NAME, tuple(names[name] for name in begun))
    return step, [names[name] for name in inputs]


def _target_of(step: Callable[..., object]) -> Callable[[], object]:
    """A step that needs no inputs: a function alone would be called for a target."""

    def cell() -> object:
        return step, ()

    return cell


def _code(body: list[ast.stmt], parameters: list[str], file: str) -> CodeType:
    """Of a function whose lines are the cell's."""
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in parameters], kwonlyargs=[],
        kw_defaults=[], defaults=[],
    )  # fmt: skip
    made = ast.FunctionDef(_NAME, arguments, body, decorator_list=[])
    module = ast.fix_missing_locations(ast.Module([made], type_ignores=[]))
    compiled = compile(module, file, "exec")
    return next(one for one in compiled.co_consts if isinstance(one, CodeType))


def _names(cell: str, file: str) -> tuple[set[str], set[str]]:
    """What the cell binds at its top, and what it reads, also in functions that it defines."""
    top = symtable.symtable(cell, file, "exec")
    own = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
    read = {one.get_name() for one in top.get_symbols() if one.is_referenced()}
    waiting = list(top.get_children())
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        read |= {one.get_name() for one in table.get_symbols() if one.is_global()}
    return own, read - own


class _Options(Parser):
    """What may stand behind the magic's name."""

    def __init__(self) -> None:
        super().__init__(
            prog=f"%%{MAGIC}",
            description="Diagnose the cell as a step. It is not run as other cells are: what it binds stays"
            " in it, and the notebook is left as it was.",
            add_help=False,
            allow_abbrev=False,
        )
        add = self.add_argument
        add("--mode", choices=("inference", "training"))
        add("--device", choices=("auto", "cuda", "emulated"), default="auto")
        add("--gpu", default="h100", help="predict for this GPU")
        add("--inputs", choices=("vary", "fixed"), default="vary")
        add("--strategies", action="store_true", help="compare ways to run it faster, too")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `%%{MAGIC}?`)")
