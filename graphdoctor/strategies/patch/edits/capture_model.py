"""Adds `model = graphdoctor.capture(model)` below the statement that binds a model."""

from __future__ import annotations

import ast
import os

from graphdoctor.source.trees import calls_in, scope_at, tree_of
from graphdoctor.strategies.patch.edits.edit import NoProposal, Proposal, not_faster
from graphdoctor.strategies.patch.source import (
    At,
    Below,
    CannotEdit,
    Change,
    Import,
    source_of,
)
from graphdoctor.values.figures import Range, joined, ratio_range, shortened
from graphdoctor.values.locations import is_library
from graphdoctor.values.program import CalledModule, Exactness, ProgramStep
from graphdoctor.values.report import Report
from graphdoctor.values.speed import StrategyOutcome
from graphdoctor.values.sweep import SMALLEST_GAIN

_NOT_TRIED = ("planned", "timed-out")  # the changed program itself is then the proof


class CaptureModel:
    """Captures the modules that a step calls; loss, optimizer and loop stay as they are."""

    name = "capture the model"
    exactness: Exactness = "bitwise"

    def propose(self, step: ProgramStep) -> Proposal:
        assert step.report is not None
        modules = _to_capture(step)
        _check_that_model_is_called(step, modules)
        gain = gain_of_modules(step.report)
        names = joined([f"`{module.expression}`" for module in modules])
        return Proposal(
            self.name,
            self.exactness,
            tuple(change for module in modules for change in _capturing(module)),
            f"{names} {_how(modules)}{gain}",
            frozenset((module.file, module.expression) for module in modules),
        )


def _to_capture(step: ProgramStep) -> list[CalledModule]:
    found = {
        m.expression: m for m in reversed(step.modules) if m.expression and not is_library(m.file)
    }
    if found:
        return sorted(found.values(), key=lambda module: (module.file, module.line))
    if not step.modules:
        raise NoProposal("the step calls no module from outside any other")
    module = step.modules[0]
    why = module.reason or f"{module.expression} is bound in a library"
    raise NoProposal(f"the step calls `{module.kind}`, and {why}")


def _check_that_model_is_called(step: ProgramStep, modules: list[CalledModule]) -> None:
    """Raises NoProposal for the layers of a model whose `forward` the program calls: the model is what to capture."""
    file, line = step.location.file, step.location.line
    scope = scope_at(file, line)
    is_layer = all(module.expression.startswith("self.") for module in modules)
    if step.mode == "training" or not is_layer or getattr(scope, "name", "") != "forward":
        return
    direct = next((c for c in calls_in(tree_of(file) or ast.Pass()) if _is_plain_forward(c)), None)
    if direct is None:
        return
    assert isinstance(direct.func, ast.Attribute)
    code = ast.unparse(direct)
    called = shortened(code.replace(".forward(", "(", 1))
    raise NoProposal(
        f"`{shortened(code)}` in line {direct.lineno} of {os.path.basename(file)} hides the call of the model, so each"
        f" step is a single layer of the model. Write `{called}`, and run the same command again"
    )


def _is_plain_forward(call: ast.Call) -> bool:
    is_forward = isinstance(call.func, ast.Attribute) and call.func.attr == "forward"
    return is_forward and not isinstance(call.func.value, ast.Call)  # type: ignore[attr-defined]


def _how(modules: list[CalledModule]) -> str:
    verb = "is" if len(modules) == 1 else "are"
    if any(module.trains for module in modules):
        return (
            f"{verb} replayed as graphs of forward and backward pass from the first training call on;"
            " loss and optimizer run eagerly"
        )
    return f"{verb} replayed as a graph from the first call on"


def gain_of_modules(report: Report) -> str:
    """What the rows of the strategies say of it. Raises NoProposal where that is nothing."""
    rows = {row.strategy: row for row in report.strategies}
    is_safe = report.verdict == "safe"
    is_training = report.target.mode == "training"
    row = rows.get("modules") or (None if is_training else rows.get("whole"))
    if is_safe and not is_training:
        row = rows.get("whole") or row
    if is_safe and (row is None or row.status != "verified"):
        return ""  # the whole step is one graph already, so its parts were not tried
    if row is None:
        raise NoProposal("no strategy was compared, so nothing says what a change would gain")
    if row.status in _NOT_TRIED and row.predicted is not None:
        return f" ({_figure(row)})"
    if row.status != "verified":
        is_unfit = row.status == "unfit"
        failed = "" if is_unfit else "graphs of its modules are not verified: "
        raise NoProposal(f"{failed}{row.reason}{' as the code is' if is_unfit else ''}")
    return f" ({_figure(row)})"


def _figure(row: StrategyOutcome) -> str:
    timed = row.measurement
    if timed is not None:
        if timed.word != "faster":
            raise NoProposal(f"graphs of its modules were measured: {timed.word}")
        measured = Range(timed.speedup_low, timed.speedup, timed.speedup_high)
        return f"{ratio_range(measured)}, measured"
    if row.predicted is None:
        return "no gain is predicted or measured"
    if row.predicted.mid < SMALLEST_GAIN:
        raise NoProposal(not_faster(row.predicted))
    return f"{ratio_range(row.predicted)}, predicted"


def _capturing(module: CalledModule) -> tuple[Change, ...]:
    mode = "training" if module.trains else "inference"
    name = module.expression
    code = f'{name} = graphdoctor.capture({name}, mode="{mode}")'
    return Import(module.file, "import graphdoctor"), Below(binding_of(module), code)


def binding_of(module: CalledModule) -> At:
    """Where the statement begins that binds it, of which the last line is known."""
    try:
        tree = ast.parse(source_of(module.file))
    except CannotEdit as reason:
        raise NoProposal(str(reason).rstrip(".")) from None
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    for node in statements:
        if (node.end_lineno, node.col_offset) == (module.line, module.column):
            return At.start_of(node, module.file)
    raise NoProposal(f"line {module.line} of its file is no longer the end of a statement")
