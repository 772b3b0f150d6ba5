"""Finds the tensors that the step builds on the device from Python numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphdoctor.operators import Transfer
from graphdoctor.rules.causes.advice import ELEMENT, STACK, for_python_data
from graphdoctor.rules.causes.draws import for_drawn_copy
from graphdoctor.rules.causes.edits import filled, stacked
from graphdoctor.rules.causes.number_lists import for_sizes
from graphdoctor.rules.causes.reads import transfers
from graphdoctor.rules.causes.source import statement_at, targets_of, with_expressions
from graphdoctor.rules.causes.words import tensor_words
from graphdoctor.rules.rule import MEASURED, NO_CURE, Hit, RecordingRule, at_op
from graphdoctor.source.trees import MAKES_TENSOR, calls_in, first_parameter, last_name, scope_at
from graphdoctor.values.finding import Cure
from graphdoctor.values.locations import Location, is_library
from graphdoctor.values.recording import Iteration, Recording


class TensorFromPythonData(RecordingRule):
    """A GPU tensor is built from Python data.

    `torch.tensor([...], device="cuda")`, `torch.as_tensor`, `x.new_tensor` and similar calls build the
    tensor on the CPU and copy it to the GPU in every step. CUDA rejects the copy during capture.

    False alarms are rare: even a single number is copied.

    Build constants once, in `__init__`, and keep them with `register_buffer`. `torch.full`,
    `torch.arange` and `torch.zeros` with `device=` fill the memory on the GPU and are safe. Pass
    numbers that change from step to step in an input tensor.
    """

    id = "GD105"
    name = "tensor-from-python-data"
    effect = "capture-fails"
    explains = ("GD104", "GD209", "GD211")
    makes_host_wait = True
    only_feeds_device = True
    evidence = MEASURED
    fix = (
        "If the numbers are constant, build the tensor once, in `__init__`, as a buffer, or fill it on the GPU with "
        "torch.full, torch.arange or torch.zeros and device=. If they follow from the batch, build the tensor with "
        "the batch, and pass it as an input of the step."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        on_gpu = recording.device == "cuda"
        for iteration in recording.captured:
            for transfer, is_python_data in transfers(iteration.ops, on_gpu=on_gpu):
                if is_python_data:
                    message = (
                        f"A {tensor_words(transfer.source)} is built from Python data on the CPU, "
                        "then copied to the GPU."
                    )
                    cure = _cure(transfer, iteration)
                    yield at_op(iteration.index, transfer.op, message, cure=cure)

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            weights = torch.tensor([0.2, 0.3, 0.5], device=x.device)  # <- GD105
            return x * weights

        return step, (torch.randn(8, 3, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        weights = torch.tensor([0.2, 0.3, 0.5], device="cuda")

        def step(x):
            return x * weights

        return step, (torch.randn(8, 3, device="cuda"),)


def _cure(transfer: Transfer, iteration: Iteration) -> Cure:
    place = transfer.op.location
    drawn = for_drawn_copy(place)
    if not drawn and place is not None and (cure := for_sizes(place, transfer.source.numel)):
        return cure
    fix = drawn or for_python_data(transfer.op, iteration)
    edit = {STACK: stacked, ELEMENT: filled}.get(fix)
    edits = edit(place) if edit is not None else ()
    return Cure(fix, edits=edits) if fix else _as_buffer(place)


def _as_buffer(place: Location | None) -> Cure:
    """A tensor of constants in a method of the user's, as a buffer of the module; no cure of other tensors."""
    if place is None or is_library(place.file):
        return NO_CURE
    statement, scope = statement_at(place.file, place.line), scope_at(place.file, place.line)
    is_simple = isinstance(statement, ast.Assign | ast.Return | ast.AugAssign)
    if statement is None or not is_simple or first_parameter(scope) != "self":
        return NO_CURE
    found = [call for call in calls_in(statement) if last_name(call.func) in MAKES_TENSOR]
    if len(found) != 1 or not all(map(_is_literal, found[0].args)):
        return NO_CURE
    (call,) = found
    moves = (
        each for each in calls_in(statement)
        if isinstance(each.func, ast.Attribute)
        and each.func.value is call
        and each.func.attr in ("to", "cuda")
    )  # fmt: skip
    old = next(moves, call)
    given = [*call.args, *(each for each in call.keywords if each.arg != "device")]
    made = f"{ast.unparse(call.func)}({', '.join(map(ast.unparse, given))})"
    is_whole = isinstance(statement, ast.Assign) and old is statement.value
    name = next(iter(targets_of(statement)), "") if is_whole else ""
    name = name if name.isidentifier() else "constant"
    return Cure(
        f"Build the tensor once, as a buffer, which moves with the module. Then use it on line {statement.lineno}:",
        (
            f'self.register_buffer("{name}", {made}, persistent=False)  # in `__init__`',
            f"{with_expressions(statement, {old: f'self.{name}'})}  # line {statement.lineno}",
        ),
    )


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True
