"""What to write for a Python number that changes, by the operator or the optimizer that takes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from graphdoctor.rules.causes.differences import Difference
from graphdoctor.rules.causes.source import statement_at, stored_rate
from graphdoctor.source.trees import holds
from graphdoctor.values.figures import shortened
from graphdoctor.values.locations import Location, is_library
from graphdoctor.values.recording import Op, OptimizerInfo, Recording

# Operators whose argument is a Python number in every overload: a tensor there is read, or is a TypeError.
_FORMULA: Mapping[str, str] = {
    "addcmul": "`x + value * a * b`",
    "addcdiv": "`x + value * a / b`",
    "celu": "`torch.where(x > 0, x, alpha * torch.expm1(x / alpha))`",
    "elu": "`torch.where(x > 0, x, alpha * torch.expm1(x))`",
    "leaky_relu": "`torch.where(x > 0, x, slope * x)`",
    "softplus": "`F.softplus(beta * x) / beta`",
    "hardtanh": "`torch.minimum(torch.maximum(x, low), high)`",
    "threshold": "`torch.where(x > threshold, x, value)`",
    "hardshrink": "`torch.where(x.abs() > width, x, 0)`",
    "softshrink": "`x.sign() * torch.relu(x.abs() - width)`",
    "masked_fill": "`torch.where(mask, value, x)`",
    "constant_pad_nd": (
        "`torch.where(F.pad(torch.ones_like(x), pad) > 0, F.pad(x, pad), value)`, which pads with 0 "
        "and then selects"
    ),
    "native_dropout": "`x * (torch.rand_like(x) >= p) / (1 - p)`",
    "bernoulli": "`torch.rand_like(x) < p`, which draws with a probability on the GPU",
    "uniform": "`low + (high - low) * torch.rand_like(x)`",
    "normal": "`mean + std * torch.randn_like(x)`",
    "randn": "`mean + std * torch.randn_like(x)`",
    "random": "`(torch.rand(shape, device=x.device) * high).long()`",
    "randint": "`(torch.rand(shape, device=x.device) * high).long()`",
    "roll": "`x.index_select(dim, (torch.arange(n, device=x.device) - shift) % n)`",
    "arange": "`start + torch.arange(n, device=x.device)`, with the same n in each step",
    "fill": "`x.copy_(value)`",
    "full": "`value.expand(shape)`",
    "full_like": "`value.expand(x.shape)`",
    "new_full": "`value.expand(shape)`",
    "scalar_tensor": "the tensor itself, without a conversion",
    "smooth_l1_loss": "`torch.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta).mean()`, with d = (x - y).abs()",
    "huber_loss": "`torch.where(d < delta, 0.5 * d * d, delta * (d - 0.5 * delta)).mean()`, with d = (x - y).abs()",
    "_foreach_lerp": (
        "`torch._foreach_mul_(averages, decay)` and `torch._foreach_add_(averages, "
        "torch._foreach_mul(values, 1 - decay))`"
    ),
}  # fmt: skip
_NORM = (
    "Normalize with the statistics of the batch only, `F.batch_norm(x, None, None, weight, bias, training=True)`, "
    "and update the averages yourself: `running_mean.lerp_(x.mean(dims), momentum)` and "
    "`running_var.lerp_(x.var(dims), momentum)`. There, `momentum` is a 0-d GPU tensor: batch norm takes a "
    "Python number."
)
_NORMS = frozenset(
    {"native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "_batch_norm_with_update"}
)
_KEPT = "Update it in place inside the step, or fill_ it before each replay."
_ATTENTION = "Multiply the query by the number, a 0-d GPU tensor, and pass scale=1.0: `scale` takes a Python number."
POSITIONS = frozenset({"select", "slice"})
_FOREACH_ALPHA = (
    "Multiply first: `torch._foreach_add_(xs, torch._foreach_mul(ys, scale))`, with `scale` a 0-d GPU tensor. "
    "`alpha` takes a Python number."
)
_SMOOTHING = (
    "Write the formula: `(1 - s) * F.cross_entropy(x, y) - s * x.log_softmax(1).mean()`, with `s` a 0-d GPU "
    "tensor. `label_smoothing` takes a Python number."
)
_DROPOUT = (
    "Write the formula: `x * (torch.rand_like(x) >= p) / (1 - p)`, with `p` a 0-d GPU tensor. Dropout takes a "
    "Python number."
)


def for_number(difference: Difference, *, kept: str = "") -> str:
    """What to write for a number that changes; "" if the operator takes a 0-d GPU tensor there.

    `kept` says where the number is then: by default, in a GPU tensor which the step updates.
    """
    op, kept = difference.op, kept or _KEPT
    name = op.base_name.rstrip("_")
    names = {change.argument.strip("`") for change in difference.changes}
    if name in POSITIONS:
        return for_position(op, kept=kept)
    statement = statement_at(op.location.file, op.location.line) if op.location else None
    text = ast.unparse(statement) if statement is not None else ""
    if "label_smoothing" in text:
        return _SMOOTHING
    if "dropout" in text and name in ("bernoulli", "div", "mul", "native_dropout"):
        return _DROPOUT
    if name in _NORMS:
        return _NORM
    if "attention" in name:
        return _ATTENTION
    if "alpha" in names or "beta" in names or _adds_scaled(op, difference):
        if name.startswith("_foreach"):
            return _FOREACH_ALPHA
        return (
            f"Multiply the tensor instead: `x.add_(scale * y)`, with `scale` a 0-d GPU tensor. {kept} `alpha` "
            "takes a Python number."
        )
    formula = _FORMULA.get(name)
    if formula is None:
        return ""
    return f"Write {formula}, with the number in a 0-d GPU tensor: `{name.lstrip('_')}` takes a Python number. {kept}"


def _adds_scaled(op: Op, difference: Difference) -> bool:
    return op.base_name.rstrip("_") in ("add", "sub", "addmm", "baddbmm", "_foreach_add", "_foreach_sub") and any(
        change.argument in ("`alpha`", "`beta`", "argument 3") for change in difference.changes
    )  # fmt: skip


def for_position(op: Op, *, kept: str = "", varies: bool = False) -> str:
    """What to write for `x[i]` or `x[i : i + n]`; `varies` if the length of the slice changes too."""
    kept = kept or _KEPT
    place = op.location
    size = op.inputs[0].shape
    dim = dimension_of(op, size)
    found = _subscript(place) if place is not None else None
    written = found is not None and _is_stored(found, place)
    base = _text(found.value) if found is not None else "x"
    length = op.outputs[0].shape[dim] if op.base_name == "slice" and op.outputs else 1
    start = _start(found)
    value = _stored_value(place) if written and place is not None else None
    if isinstance(value, ast.Constant):
        return _for_span(base, dim, size[dim], found, value, kept=kept)
    if varies:
        return (
            f'Work at the full size and mask the rest: `places = torch.arange({size[dim]}, device="cuda")` once, then '
            f"`torch.where(places < {start}, values, 0)` along dimension {dim}, or an attention mask. "
            f"{_as_tensor(start)} {kept} A slice bound takes a Python number."
        )
    index = (
        f"{start}.view(1)" if length == 1 else f'{start} + torch.arange({length}, device="cuda")'
    )
    if written:
        text = _text(value) if value is not None else "values"
        text = text if text.isidentifier() or op.base_name == "slice" else f"({text})"
        rows = text if op.base_name == "slice" else f"{text}.unsqueeze({dim})"
        code = f"`{base}.index_copy_({dim}, {index}, {rows})`"
        return f"Write with the position in a GPU tensor: {code}. {_as_tensor(start)} {kept}"
    squeeze = f".squeeze({dim})" if op.base_name == "select" else ""
    code = f"`{base}.index_select({dim}, {index}){squeeze}`"
    return f"Select with the position in a GPU tensor: {code}. {_as_tensor(start)} {kept}"


def _for_span(
    base: str, dim: int, size: int, found: ast.Subscript | None, value: ast.Constant, *, kept: str
) -> str:
    """For `x[:, i : i + n] = 0`: a number that is stored into a span."""
    part = next((each for each in _parts(found) if _has_name(each)), None)
    if isinstance(part, ast.Slice):
        bounds = [
            f"(places {sign} {_text(bound)})"
            for sign, bound in ((">=", part.lower), ("<", part.upper))
            if bound is not None
        ]
        inside = " & ".join(bounds)
    else:
        inside = f"places == {_text(part)}" if part is not None else "places == position"
    start = _start(found)
    return (
        f'Compare positions: with `places = torch.arange({size}, device="cuda")` along dimension {dim}, '
        f"`torch.where({inside}, {ast.unparse(value)}, {base})`. {_as_tensor(start)} {kept}"
    )


def _stored_value(place: Location) -> ast.expr | None:
    statement = statement_at(place.file, place.line)
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        return statement.value
    for node in ast.walk(statement) if statement is not None else ():
        if isinstance(node, ast.Call) and node.args and _written_to(node) is not None:
            return node.args[0]
    return None


def _written_to(node: ast.AST) -> ast.expr | None:
    """`x[i]` of `x[i].copy_(y)` and `x[i].fill_(y)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr in ("copy_", "fill_") else None
    return None


def _as_tensor(start: str) -> str:
    return f"`{start}` is then an int64 GPU tensor." if start.isidentifier() or "." in start else (
        "The position is then an int64 GPU tensor."
    )  # fmt: skip


def dimension_of(op: Op, shape: Sequence[int]) -> int:
    """The dimension of a tensor of this shape that the second argument of an operator names, from 0 on."""
    dim = op.args[1] if len(op.args) > 1 and isinstance(op.args[1], int) else 0
    return dim % max(1, len(shape))


def _subscript(place: Location) -> ast.Subscript | None:
    """The first `x[...]` on a line that indexes by anything but constants."""
    statement = statement_at(place.file, place.line)
    for node in ast.walk(statement) if statement is not None else ():
        if isinstance(node, ast.Subscript) and holds(node, place.line) and _has_name(node.slice):
            return node
    return None


def _is_stored(found: ast.Subscript, place: Location | None) -> bool:
    """`x[i] = y`, `x[i] += y`, or `x[i].copy_(y)`."""
    if isinstance(found.ctx, ast.Store):
        return True
    statement = statement_at(place.file, place.line) if place is not None else None
    nodes = ast.walk(statement) if statement is not None else ()
    return any(_written_to(node) is found for node in nodes)


def _start(found: ast.Subscript | None) -> str:
    """The position as written: the lower bound, or the upper one if the lower one is constant."""
    for part in _parts(found):
        bounds = (part.lower, part.upper) if isinstance(part, ast.Slice) else (part,)
        for bound in bounds:
            if bound is None or isinstance(bound, ast.Constant):
                continue
            if _has_name(bound):
                text = _text(bound)
                return text if isinstance(bound, (ast.Name, ast.Attribute)) else f"({text})"
    return "position"


def _parts(found: ast.Subscript | None) -> list[ast.expr]:
    if found is None:
        return []
    return found.slice.elts if isinstance(found.slice, ast.Tuple) else [found.slice]


def _has_name(node: ast.AST) -> bool:
    return any(isinstance(part, (ast.Name, ast.Attribute)) for part in ast.walk(node))


def _text(node: ast.AST) -> str:
    return shortened(ast.unparse(node))


def for_size_of(difference: Difference, *, kept: str = "") -> str:
    """What to write for an operator whose result has another size in each step; "" if unknown."""
    op = difference.op
    if op.base_name == "slice" and op.location is not None:
        return for_position(op, kept=kept, varies=True)
    if op.base_name == "arange":
        return (
            'Work at the full size and mask the rest: `places = torch.arange(most, device="cuda")`, then '
            f"`torch.where(places < n, values, 0)`, with `n` in a GPU tensor. {kept or _KEPT}"
        )
    return ""


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
        if frame is None or is_library(frame.file) or (statement := stored_rate(frame)) is None:
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        line = f"line {statement.lineno} of {Path(frame.file).name}"
        if isinstance(statement, ast.AugAssign):
            code = shortened(ast.unparse(statement))
            return f"Then `{code}` on {line} updates that tensor in place."
        code = f"{ast.unparse(target)}.fill_({ast.unparse(statement.value)})"
        return (
            f"Replace {line} with `{code}`, since an assignment puts a Python number in the tensor's place. Run it"
            " before each replay, outside the captured step."
        )
    return ""


def has_no_capturable_form(optimizers: Iterable[OptimizerInfo], class_name: str) -> bool:
    """Whether the class has no `capturable` that one could set."""
    own = [info for info in optimizers if info.class_name == class_name]
    return bool(own) and all(info.capturable is None for info in own)


def reads_a_rate(info: OptimizerInfo) -> bool:
    """Whether a rate on the device would be read on the host: `add_(update, alpha=-lr)` does."""
    return info.capturable is None and info.class_name != "SGD"  # SGD has fused=True
