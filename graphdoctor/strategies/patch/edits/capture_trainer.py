"""Replace Hugging Face's `Trainer` by a subclass that replays the forward and backward pass as one graph."""

from __future__ import annotations

import ast
import os

from graphdoctor.strategies.patch.edits.capture_model import gain_of_modules
from graphdoctor.strategies.patch.edits.edit import NoProposal, Proposal
from graphdoctor.strategies.patch.source import (
    Above,
    At,
    Callee,
    CannotEdit,
    Import,
    source_of,
    top_statement,
)
from graphdoctor.target.program.names import names_in_file
from graphdoctor.values.locations import is_library
from graphdoctor.values.program import Exactness, ProgramStep

_TRAINERS = ("Trainer", "Seq2SeqTrainer")
_OWN_STEP = frozenset({"training_step", "compute_loss"})
_FUNCTION, _CLASS = "forward_backward", "CapturedTrainer"
# What `Trainer.training_step` does for one GPU, without what a program can make it do besides: that stays its own.
_CODE = f"""\
@graphdoctor.capture
def {_FUNCTION}(model, inputs, passes):
    loss = model(**inputs)[0] / passes
    loss.backward()
    return loss


class {_CLASS}({{base}}):
    def training_step(self, model, inputs, num_items_in_batch=None):
        special = self.label_smoother or self.compute_loss_func or self.accelerator.scaler
        if special or model is not self.model:
            return super().training_step(model, inputs, num_items_in_batch)
        model.train()
        inputs, passes = {{{{**self._prepare_inputs(inputs)}}}}, self.current_gradient_accumulation_steps
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            inputs["num_items_in_batch"], passes = num_items_in_batch, 1
        return {_FUNCTION}(model, inputs, passes)
"""


class CaptureTrainer:
    """Captures forward and backward pass of a Trainer, which goes on to clip, step, schedule and log."""

    name = "capture the Trainer's step"
    exactness: Exactness = "bitwise"

    def propose(self, step: ProgramStep) -> Proposal:
        caller = step.caller
        is_trainer = step.location.file.endswith(os.path.join("transformers", "trainer.py"))
        if not is_trainer or caller is None or is_library(caller.file) or step.mode != "training":
            raise NoProposal("its loop is not that of a Trainer which the program calls")
        assert step.report is not None
        file = caller.file
        try:
            text = source_of(file)
            tree = ast.parse(text)
        except CannotEdit as reason:
            raise NoProposal(str(reason).rstrip(".")) from None
        call = _only_trainer(tree, os.path.basename(file))
        if {_FUNCTION, _CLASS} & names_in_file(text):
            raise NoProposal(f"the names {_FUNCTION} and {_CLASS} are taken")
        gain = gain_of_modules(step.report)
        code = _CODE.format(base=ast.unparse(call.func))
        return Proposal(
            self.name,
            self.exactness,
            (
                Import(file, "import graphdoctor"),
                Above(top_statement(file, text, call.lineno), code),
                Callee(At.end_of(call, file), _CLASS),
            ),
            f"`{_CLASS}` replays the forward and backward pass of `training_step()` as a graph; the Trainer"
            f" clips gradients, steps the optimizer and moves the learning rate as before{gain}",
        )


def _only_trainer(tree: ast.Module, name: str) -> ast.Call:
    """The one call that makes a Trainer, of transformers or of a subclass in the file."""
    imports = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom))
    trainers = {
        alias.asname or alias.name
        for each in imports
        if (each.module or "").split(".")[0] == "transformers"
        for alias in each.names
        if alias.name in _TRAINERS
    } | {f"transformers.{each}" for each in _TRAINERS}
    for each in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
        if not trainers & {ast.unparse(base) for base in each.bases}:
            continue
        own = _OWN_STEP & {n.name for n in each.body if isinstance(n, ast.FunctionDef)}
        if own:
            raise NoProposal(f"`{each.name}` defines {min(own)}()")
        if each not in tree.body:
            raise NoProposal(f"`{each.name}` is a class inside a function")
        trainers.add(each.name)
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call))
    found = [call for call in calls if ast.unparse(call.func) in trainers]
    if len(found) != 1:
        raise NoProposal(f"{name} makes {len(found) or 'no'} Trainer{'s' * (len(found) > 1)}")
    return found[0]
