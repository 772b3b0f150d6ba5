"""A step's report and the modules that it calls -> insertions into the program, or why there are none."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass

from graphdoctor.strategies.patch.edits import CannotEdit, Insertion, after_imports, source_of
from graphdoctor.values.figures import Range, ratio_range, ratio_text
from graphdoctor.values.locations import is_library
from graphdoctor.values.program import CalledModule, ProgramStep
from graphdoctor.values.report import Report
from graphdoctor.values.speed import StrategyOutcome

_LEAST_GAIN = 1.05
# On a GPU no process of its own finds a program's step again; the changed program itself is then the proof.
_NOT_TRIED = ("planned", "unfit", "timed-out")
_CACHE = "cache_implementation"
_OTHER_CACHES = frozenset({_CACHE, "past_key_values", "use_cache", "generation_config", None})


class NoProposal(Exception):
    """Nothing is proposed for a step; the text is the reason, as a sentence."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to change for one step, and what that does, in a sentence."""

    insertions: tuple[Insertion, ...]
    sentence: str


def proposal_for(step: ProgramStep) -> Proposal:
    """Raises NoProposal, with the reason."""
    if step.report is None:
        raise NoProposal("it was not diagnosed")
    if step.report.verdict == "unknown":
        raise NoProposal("nothing is proposed for a step whose verdict is unknown")
    if (call := _generate_call(step)) is not None:
        return _with_static_cache(step, call)
    modules = _to_capture(step)
    gain = _gain(step.report)
    insertions = tuple(each for module in modules for each in _capturing(module))
    names = " and ".join(f"`{module.expression}`" for module in modules)
    return Proposal(insertions, f"{names} {_how(modules)}{gain}")


def _to_capture(step: ProgramStep) -> list[CalledModule]:
    found = {m.expression: m for m in reversed(step.modules) if m.expression and _is_own(m.file)}
    if found:
        return sorted(found.values(), key=lambda module: (module.file, module.line))
    if not step.modules:
        raise NoProposal("the step calls no module from outside any other")
    module = step.modules[0]
    why = module.reason or f"{module.expression} is bound in a library"
    raise NoProposal(f"the step calls `{module.kind}`, and {why}")


def _is_own(file: str) -> bool:
    return not is_library(file)


def _how(modules: list[CalledModule]) -> str:
    if any(module.trains for module in modules):
        return (
            f"{_are(modules)} replayed as graphs of forward and backward pass from the first training"
            " call on; loss, optimizer and loop stay as they are"
        )
    return f"{_are(modules)} replayed as a graph from the first call on"


def _are(modules: list[CalledModule]) -> str:
    return "is" if len(modules) == 1 else "are"


def _gain(report: Report) -> str:
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
        raise NoProposal(f"graphs of its modules were not shown to be right: {row.reason}")
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
    if row.predicted.mid < _LEAST_GAIN:
        raise NoProposal(
            f"graphs of its modules would gain too little: {ratio_text(row.predicted.mid)}"
        )
    return f"{ratio_range(row.predicted)}, predicted"


def _capturing(module: CalledModule) -> Iterator[Insertion]:
    mode = "training" if module.trains else "inference"
    name = module.expression
    code = f'{name} = graphdoctor.capture({name}, mode="{mode}")'
    text = _source(module.file)
    if not _imports_us(text):
        yield Insertion(module.file, after_imports(text), "import graphdoctor")
    yield Insertion(module.file, module.line, " " * module.column + code)


def _source(file: str) -> str:
    try:
        return source_of(file)
    except CannotEdit as reason:
        raise NoProposal(str(reason).rstrip(".")) from None


def _imports_us(text: str) -> bool:
    imports = (node for node in ast.parse(text).body if isinstance(node, ast.Import))
    return any(a.name == "graphdoctor" and not a.asname for node in imports for a in node.names)


def _generate_call(step: ProgramStep) -> ast.Call | None:
    """The program's own `generate(...)`, whose library makes these steps with a cache that grows."""
    caller, report = step.caller, step.report
    if caller is None or report is None or is_library(caller.file):
        return None
    grows = any(f.rule == "GD212" for f in report.findings)
    if not grows or os.path.join("transformers", "generation", "") not in step.location.file:
        return None
    calls = (n for n in ast.walk(ast.parse(_source(caller.file))) if isinstance(n, ast.Call))
    return next((call for call in calls if _generates(call, caller.line)), None)


def _generates(call: ast.Call, line: int) -> bool:
    is_named = isinstance(call.func, ast.Attribute) and call.func.attr == "generate"
    return is_named and call.lineno <= line <= (call.end_lineno or call.lineno)


def _with_static_cache(step: ProgramStep, call: ast.Call) -> Proposal:
    assert step.caller is not None
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not arguments or any(keyword.arg in _OTHER_CACHES for keyword in call.keywords):
        raise NoProposal(
            f"the call of generate() in line {call.lineno} chooses its cache by other arguments"
        )
    last = max(arguments, key=lambda each: (each.end_lineno, each.end_col_offset))
    assert last.end_lineno is not None and last.end_col_offset is not None
    edit = Insertion(step.caller.file, last.end_lineno, f', {_CACHE}="static"', last.end_col_offset)
    return Proposal(
        (edit,),
        "generate() gets a cache of fixed length, so that each decode step has the same shapes (GD212);"
        " on a GPU, transformers then compiles that step into CUDA graphs",
    )
