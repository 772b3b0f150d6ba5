"""Captures the loop that computes the returns of a rollout, in a function beside that of the training step.

An agent that learns from a rollout runs small operators for each of its steps, without gradients, before it trains.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from graphdoctor.source.trees import calls_in, walk_until
from graphdoctor.strategies.patch.edits.capture_decode import (
    computes,
    counted_by,
    functions_called,
    lines_of,
)
from graphdoctor.strategies.patch.edits.capture_step import (
    CAPTURE,
    CaptureStep,
    Extraction,
    span_of_step,
)
from graphdoctor.strategies.patch.edits.edit import NoProposal, Proposal
from graphdoctor.strategies.patch.read_values import is_of_tensors
from graphdoctor.strategies.patch.source import source_of
from graphdoctor.strategies.patch.step_parts import MODES, as_one_group, called
from graphdoctor.target.program.names import Names, names_outside
from graphdoctor.target.program.statements import Span
from graphdoctor.values.program import Exactness, ProgramStep

_NAMES = ("compute_returns", "estimate_returns", "captured_returns")
_PYTHON = frozenset({"range", "reversed", "len", "min", "max"})
_FILLS = frozenset({"append", "appendleft", "extend", "insert", "clear", "pop"})


class CaptureReturns:
    """Captures a training step, and what computes its returns in the loop around it."""

    name = "capture the step and the returns"
    exactness: Exactness = CaptureStep.exactness

    def propose(self, step: ProgramStep) -> Proposal:
        proposal = CaptureStep().propose(step)
        file = step.location.file
        text = source_of(file)
        span = _span_of_returns(span_of_step(text, step))
        extraction = Extraction(
            file,
            text,
            span,
            as_one_group(span.block, text),
            frozenset(step.host_values),
            frozenset(module.expression for module in step.modules),
            CAPTURE,
            stems=_NAMES,
        )
        (name,) = extraction.names
        return replace(
            proposal,
            edit=self.name,
            changes=(*proposal.changes, *extraction.changes()),
            clause=f"{proposal.clause}; `{name}()` computes the returns before it, replayed as a graph, too",
            captured=lines_of((*span.block, *functions_called(span.block, text)), file),
        )


def _span_of_returns(step: Span) -> Span:
    """The block without gradients that loops over a rollout for the step. Raises NoProposal."""
    for depth, holder in enumerate(step.around):
        block = step.block_with(holder)
        for number, statement in enumerate(block[: block.index(holder)]):
            if not isinstance(statement, ast.With) or not _is_rollout(statement):
                continue
            body = tuple(statement.body)
            span = replace(
                step,
                block=body,
                first=0,
                last=len(body) - 1,
                around=(*step.around[:depth], statement),
                last_line=statement.end_lineno or 0,
            )
            if _made_in(body) & Names(block[number + 1 :]).early and not _varies(span):
                return span
    raise NoProposal("no loop without gradients computes returns for it")


def _is_rollout(block: ast.With) -> bool:
    """Whether all that a block does is to bind what the GPU may compute, some of it in a loop over a range."""
    if not any(called(item.context_expr) & MODES for item in block.items):
        return False
    made = _made_in(block.body)
    loops = [n for statement in block.body for n in ast.walk(statement) if isinstance(n, ast.For)]
    inside = calls_in(*loops)
    of_numpy = (
        ast.unparse(call.func).startswith(("np.", "numpy.")) for call in calls_in(*block.body)
    )
    return (
        bool(loops)
        and all(computes(statement, made) for statement in block.body)
        and all(ast.unparse(call.func) in _PYTHON or is_of_tensors(call) for call in inside)
        and not any(of_numpy)
    )


def _made_in(statements: Iterable[ast.stmt]) -> set[str]:
    """The variables that statements bind, or of which they write parts."""
    nodes = [n for each in statements for n in ast.walk(each)]
    targets = [n.value if isinstance(n, ast.Subscript) else n for n in nodes if _is_bound(n)]
    return {n.id for n in targets if isinstance(n, ast.Name)}


def _is_bound(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


def _varies(span: Span) -> bool:
    """Whether its calls differ in a number, a list or a branch, each of which would need its own graph."""
    around = span.loop or span.owner
    nodes = [n for each in span.block for n in ast.walk(each)]
    loops = [n for n in nodes if isinstance(n, ast.For)]
    tests = [n.test for n in nodes if isinstance(n, (ast.If, ast.IfExp))]
    counted = {*counted_by(span.around)} | {
        n.target.id
        for n in ast.walk(around)
        if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
    }
    filled = {
        call.func.value.id
        for call in calls_in(around)
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.attr in _FILLS
    }
    rounds = Names([ast.Assign([loop.target], ast.Constant(0)) for loop in loops]).stored
    bound = names_outside(around, span.block, ast.Store) | _made_in(span.block) - rounds
    read = [n for n in walk_until(tests, _is_shape) if not _is_shape(n)]
    deciding = {n.id for n in read if isinstance(n, ast.Name)}
    deciding |= Names([ast.Expr(loop.iter) for loop in loops]).loaded
    return bool(
        any(isinstance(n, ast.Subscript) for n in read)
        or Names(span.block).early & (counted | filled)
        or deciding & bound
    )


def _is_shape(node: ast.AST) -> bool:
    part = node.value if isinstance(node, ast.Subscript) else node
    is_attribute = isinstance(part, ast.Attribute) and part.attr == "shape"
    return is_attribute or (isinstance(node, ast.Call) and called(node) <= {"len", "size"})
