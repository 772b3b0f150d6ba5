"""Finds the branches that values of the device decide."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.advice import for_branch, for_settled_branch
from graphdoctor.rules.causes.branch_points import Branch, Side
from graphdoctor.rules.causes.edits import asserted, selected
from graphdoctor.rules.causes.reads import Read, host_reads
from graphdoctor.rules.causes.words import place_words, tensor_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Iteration, Recording


class DataDependentBranch(RecordingRule):
    """A GPU value decides which branch Python takes.

    `if t:`, `while t.max() > eps:`, `assert t.isfinite().all()` and `if x.item() > 0:` are host syncs,
    which CUDA rejects during capture. A graph contains only one branch: a replay always runs the
    captured branch, whatever the value is.

    False alarm: the branch does not run in production, for example a debugging check.

    Compute both branches and select with `torch.where`. Clamp instead of checking, or check on the GPU
    with `torch._assert_async`. If one branch is expensive, keep the branch in Python between two
    captured regions, or use `torch.cond`.
    """

    id = "GD107"
    name = "data-dependent-branch"
    effect = "capture-fails"
    explains = ("GD101", "GD103", "GD201", "GD202", "GD203", "GD209")
    makes_host_wait = True
    evidence = MEASURED
    fix = (
        "Compute both branches and select with torch.where. Or keep this branch in Python "
        "between two captured regions."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        sides = {iteration.index: Side(iteration) for iteration in recording.captured}
        taken: dict[Branch, str] = {}
        for read in host_reads(recording):
            if not read.flow.branches or read.of_scaler:
                continue
            branch = read.flow.branches[0]
            if branch not in taken:
                taken[branch] = _taken(branch, recording.captured, sides)
            message = _message(read, branch) + taken[branch]
            settled, edit = "", asserted
            if branch.kind != "assert":
                settled = for_settled_branch(read.use, sides[read.iteration].iteration)
                edit = selected
            is_here = branch.line == _line(read) and not branch.raises and not settled
            edits = edit(branch.location) if is_here else ()
            fix = settled or for_branch(branch)
            yield at_op(read.iteration, read.op, message, cure=Cure(fix, edits=edits))

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            if x.sum() > 0:  # <- GD107
                return x * 2
            return x - 1

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            return torch.where(x.sum() > 0, x * 2, x - 1)

        return step, (torch.randn(8, 16, device="cuda"),)


def _message(read: Read, branch: Branch) -> str:
    where = place_words(read.op.location, read.op.location)
    here = place_words(branch.location, read.op.location) if branch.line != _line(read) else ""
    at = f" on {here}" if here and here != where else ""
    frozen = "A replay always takes the captured branch"
    if branch.kind == "assert":
        frozen = "In a replay, this assertion never fires, even if its condition is false"
    return (
        f"Data-dependent control flow: `{branch.text}`{at} is a host sync on a {tensor_words(read.use)}. "
        f"{frozen}"
    )


def _line(read: Read) -> int:
    return read.op.location.line if read.op.location is not None else 0


def _taken(branch: Branch, iterations: tuple[Iteration, ...], sides: dict[int, Side]) -> str:
    """How many recorded iterations ran the body, where they differ in that."""
    if branch.body is None or branch.kind == "assert":
        return "."
    body = branch.body
    ran = sum(sides[iteration.index].ran(branch.file, body) for iteration in iterations)
    if ran in (0, len(iterations)):
        return "."
    lines = f"line {body[0]}" if body[0] == body[1] else f"lines {body[0]}-{body[1]}"
    return f" ({lines} ran in {ran} of {len(iterations)} recorded steps)."
