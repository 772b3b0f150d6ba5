"""The optimizers of a recording -> why their numbers change, and what to write for each class."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from graphdoctor.rules.causes.source import stored_rate
from graphdoctor.values.figures import shortened
from graphdoctor.values.locations import Location, is_library
from graphdoctor.values.recording import OptimizerInfo, Recording

# Options that a schedule sets; what else changes in a group is the optimizer's own count.
_SCHEDULED = re.compile(r"\.param_groups\[\d+\]\.(lr|momentum|betas|weight_decay)\b")

OUTSIDE = (
    "Call optimizer.step() outside the captured region, after the replay, or use an optimizer with "
    "capturable=True, such as torch.optim.AdamW."
)
_AFTER = "Call optimizer.step() outside the captured region, after the replay."
COUNTED = (
    "Count the steps in a GPU tensor and compute the number from it, as torch.optim does with "
    "capturable=True. Or call optimizer.step() outside the captured region, after the replay."
)


def rates_change(recording: Recording) -> bool:
    """Whether something sets the options of an optimizer: a schedule, or the program itself."""
    return any(
        _SCHEDULED.search(change.path) or change.path.endswith(".last_epoch")
        for iteration in recording.captured
        for change in iteration.changes
    )


def scheduled(recording: Recording) -> frozenset[str]:
    """The options of optimizers that the steps changed: "lr", "weight_decay"."""
    found = (
        _SCHEDULED.search(change.path)
        for iteration in recording.captured
        for change in iteration.changes
    )
    return frozenset(match[1] for match in found if match is not None)


def options_advice(recording: Recording) -> str:
    """What to do about options that change and that no optimizer keeps in a tensor; "" if none does."""
    others = sorted(scheduled(recording) - {"lr"})
    if not others:
        return ""
    named = " and ".join(f"`{option}`" for option in others)
    is_plural = len(others) > 1 or "betas" in others
    verb = "are Python numbers" if is_plural else "is a Python number"
    return f"{named} {verb} in the optimizer, unlike `lr`. {_AFTER}"


def stored_rate_advice(frames: Iterable[Location | None]) -> str:
    """What to do with the statement near these lines that sets `group["lr"]`, a tensor now; "" if none does."""
    for frame in frames:
        statement = stored_rate(frame) if frame is not None and not is_library(frame.file) else None
        if statement is None:
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if isinstance(statement, ast.AugAssign):
            code = shortened(ast.unparse(statement))
            return f"Then `{code}` on line {statement.lineno} updates that tensor in place."
        code = shortened(f"{ast.unparse(target)}.fill_({ast.unparse(statement.value)})")
        return (
            f"Replace line {statement.lineno} by `{code}`, before each "
            "replay: an assignment puts a Python number in the tensor's place."
        )
    return ""


def has_no_capturable_form(optimizers: Iterable[OptimizerInfo], class_name: str) -> bool:
    """Whether the class has no `capturable` that one could set."""
    own = [info for info in optimizers if info.class_name == class_name]
    return bool(own) and all(info.capturable is None for info in own)


def reads_a_rate(info: OptimizerInfo) -> bool:
    """Whether a rate on the device would be read on the host: `add_(update, alpha=-lr)` does."""
    return info.capturable is None and info.class_name != "SGD"  # SGD has fused=True
