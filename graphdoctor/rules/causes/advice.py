"""Says what to write instead of a hazard's operator, where its code tells more than the rule's fix."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from graphdoctor.operators import Transfer, transfer_of
from graphdoctor.operators.conditions import has_nested
from graphdoctor.rules.causes.branch_points import Branch
from graphdoctor.rules.causes.edits import (
    device_of_indexed,
    factor_of_covariance,
    made_indices,
    with_causality,
    without_check,
)
from graphdoctor.rules.causes.numbers import dimension_of
from graphdoctor.rules.causes.reads import tensor_lines
from graphdoctor.rules.causes.sizes import constant_state
from graphdoctor.rules.causes.source import (
    call_at,
    changed_name,
    keyword_given,
    names_in,
    own_nodes,
    reads,
    statement_at,
    targets_of,
    written,
)
from graphdoctor.rules.causes.sparse import product_without_kernel
from graphdoctor.rules.causes.words import place_words
from graphdoctor.source.trees import last_name, scope_at, statements_of
from graphdoctor.values.figures import names_text, shortened
from graphdoctor.values.finding import Cure
from graphdoctor.values.host_events import StreamSwitch
from graphdoctor.values.locations import Location, is_library, line_of
from graphdoctor.values.recording import Iteration, Op, TensorUse

NESTED = (
    "Keep the padded tensor and a mask: nested tensors keep their sizes on the CPU. For "
    "nn.TransformerEncoder with a padding mask, pass enable_nested_tensor=False."
)
_ELSEWHERE = (
    "No variant of the operator can be captured: call it outside the captured region, and only in the "
    "steps that need it."
)
_EX = (
    "Use the variant without a check, such as torch.linalg.inv_ex, cholesky_ex, solve_ex or "
    "lu_factor_ex, without check_errors."
)
_BOUNDS = (
    "Pass the bounds as Python numbers, or scale: low + (high - low) * torch.linspace(0, 1, n, "
    'device="cuda").'
)

_DENSE = "Keep the tensor dense, with a mask: the CPU must know the size of a sparse result."

# By the operator's name without its overload.
_WAITS: Mapping[str, str] = {
    "_coalesce": (
        "Use dense gradients: nn.Embedding without sparse=True, and Adam with capturable=True instead of "
        "SparseAdam. Coalesce other sparse tensors before the step."
    ),
    "_sparse_sparse_matmul": _DENSE,
    "_sparse_softmax": _DENSE,
    "_sparse_sum": _DENSE,
    "_sparse_log_softmax": _DENSE,
    "_fused_moving_avg_obs_fq_helper": (
        "Observe weights per tensor: a qconfig with torch.ao.quantization.default_fused_wt_fake_quant."
    ),
    "fake_quantize_per_channel_affine_cachemask": (
        "Pass the zero points as float32, which are not checked: zero_point.float()."
    ),
    **dict.fromkeys(
        (
            "_fake_quantize_learnable_per_channel_affine", "_fake_quantize_learnable_per_tensor_affine",
            "_fake_quantize_learnable_per_channel_affine_backward", "quantize_per_tensor",
            "_fake_quantize_learnable_per_tensor_affine_backward", "quantize_per_tensor_dynamic",
        ),
        "Write the formula: (x / scale + zero_point).round().clamp(low, high), which keeps scale on the GPU.",
    ),
    "_ctc_loss": "Compute this loss outside the captured region: its kernels copy lengths from the CPU.",
    "_ctc_loss_backward": "Compute this loss outside the captured region: its kernels copy lengths from the CPU.",
    "_grouped_mm": (
        "Pass bfloat16, which has its own kernel. transformers: model.to(torch.bfloat16), or "
        'model.set_experts_implementation("batched_mm").'
    ),
    "_linalg_check_errors": _EX,
    "_linalg_solve_ex": _EX,
    "cholesky": "Use torch.linalg.cholesky_ex(x).L, which does not check.",
    "cholesky_inverse": "Invert with torch.linalg.solve_triangular, which takes batches.",
    "cholesky_solve": "Solve twice with torch.linalg.solve_triangular, which takes batches.",
    "histc": "Pass min= and max= to histc, as Python numbers.",
    "index_fill": "Use x.index_copy, which takes values on the GPU: one for each index, expanded.",
    "index_fill_": "Use x.index_copy_, which takes values on the GPU: one for each index, expanded.",
    "isin": "Compare with every element: (x[..., None] == elements).any(-1).",
    "linalg_cholesky_ex": _EX,
    "linalg_inv_ex": _EX,
    "linalg_lu_factor_ex": _EX,
    "linspace": _BOUNDS,
    "logspace": _BOUNDS,
    "masked_fill": "Use torch.where(mask, value, x), which takes a value on the GPU.",
    "masked_fill_": "Use x.copy_(torch.where(mask, value, x)), which takes a value on the GPU.",
    "masked_scatter_backward": "Use torch.where with values of the full shape instead of masked_scatter.",
    "normal": "Use mean + std * torch.randn_like(mean), which makes no check.",
    "searchsorted": "Sort the sequence instead of giving sorter=: sequence.gather(-1, sorter).",
    "segment_reduce": "Pass unsafe=True, which skips the check of the lengths.",
    **dict.fromkeys(
        (
            "_linalg_eigh", "_linalg_eigvals", "_linalg_svd", "linalg_eig", "linalg_ldl_factor_ex",
            "linalg_ldl_solve", "linalg_lstsq", "linalg_lu", "linalg_matrix_exp", "linalg_pinv",
        ),
        _ELSEWHERE,
    ),
}  # fmt: skip
LOGARITHMS = (
    "Use cumsum of logarithms, torch.cumsum(x.log(), dim).exp(), for positive values. The backward of "
    "prod and cumprod searches for zeros."
)

# By the function that is called on the line: what it checks, or asks for.
_CALLS: Mapping[str, str] = {
    "one_hot": "Pass the number of classes: F.one_hot(x, num_classes).",
    "clip_grad_norm_": "Call clip_grad_norm_ without error_if_nonfinite=True, whose check reads the norm.",
    "gaussian_nll_loss": (
        "Write the formula, 0.5 * (var.log() + (x - target) ** 2 / var): gaussian_nll_loss reads whether a "
        "variance is negative."
    ),
    **dict.fromkeys(
        ("cov", "corrcoef"),
        "Write the formula, x = x - x.mean(1, keepdim=True) and x @ x.T / (x.shape[1] - 1): torch reads whether "
        "the divisor is positive.",
    ),
    "equal": "Compare on the GPU: (x == y).all(). Read that tensor after the replay.",
    "allclose": "Compare on the GPU: torch.isclose(x, y).all(). Read that tensor after the replay.",
    "istft": "Call istft outside the captured region: it reads whether the window covers the whole signal.",
}
_INDEX = (
    "Use x.index_select(0, i.view(1)), which keeps the index on the GPU. The bound of a slice must be "
    "a Python number: keep the full size, and mask the rest."
)
STACK = (
    "Stack the GPU tensors: `torch.stack([a, b])`, or `torch.stack(values)` of a list. torch.tensor() of GPU "
    "tensors reads each of them on the CPU."
)
ELEMENT = "Store a number with fill_, y[0, 0].fill_(1.0), or into a slice, y[0, :1] = 1.0."
_NESTING = frozenset({"nested_tensor", "as_nested_tensor"})
_PACKED = (
    "Run the RNN on the padded tensor, and mask its output. Take the last state with out.gather(1, index), of "
    "lengths - 1. A packed sequence keeps its lengths on the CPU. Call a bidirectional RNN, which reads the padding "
    "first, outside the captured region."
)
_PACKING = frozenset({"pack_padded_sequence", "pad_packed_sequence", "pack_sequence"})
# How torch.nn.modules.transformer compares a mask with a causal one: `_detect_is_causal_mask`.
_DETECTING = ("triu", "eq", "all", "_local_scalar_dense")
_READING = frozenset({"item", "tolist", "is_nonzero"})
_CONVERTING = frozenset({"float", "int", "bool"})
# What torch's operators take as a number only: a tensor that is given there is read.
_FACTORS = frozenset({"alpha", "beta", "value"})
_GREATEST: Mapping[str, str] = {
    name: f"Select on the GPU: torch.{name}imum(a, b), or clamp with a number. Python's {name}() is a host sync: it "
    "reads the result of the comparison."
    for name in ("max", "min")
}


def for_wait(op: Op, iteration: Iteration) -> Cure:
    """In the place of an operator that waits for the device inside."""
    if any(use.sparse for use in op.inputs) and op.base_name in ("mm", "addmm", "_sparse_addmm"):
        return product_without_kernel(op, iteration) or Cure(_DENSE)
    text = NESTED if has_nested(op) else _WAITS.get(op.base_name, "")
    place = op.location
    if place is not None and (statement := statement_at(place.file, place.line)) is not None:
        for node in ast.walk(statement):
            if factor := factor_of_covariance(place.file, node)[0]:
                text = f"Pass `{factor}` instead of the covariance, which torch factors and checks on the CPU."
    return Cure(text, edits=without_check(place))


def for_cache(op: Op) -> str:
    """What to write instead of an operator that appends to a tensor of the previous step, such as a cache; or ""."""
    if op.base_name == "stack":
        return _LIST
    if op.base_name != "cat" or op.location is None:
        return ""
    tensors = [use for use in op.inputs if use.is_cuda]
    if len(tensors) > 2:
        return _LIST
    dim = dimension_of(op, tensors[0].shape)
    old, new = _concatenated(op.location)
    count = tensors[-1].shape[dim]
    index = "position" if count == 1 else f'position + torch.arange({count}, device="cuda")'
    return (
        f"Preallocate `{old}` at its full size along dimension {dim}, and write in place: "
        f"`{old}.index_copy_({dim}, {index}, {new})` and `position.add_({count})`, with `position` an int64 GPU "
        "tensor of shape (1,). Mask the entries beyond `position`. transformers: pass a StaticCache."
    )


_LIST = (
    "Preallocate one tensor for all entries instead of a list: `entries.index_copy_(0, position, new.unsqueeze(0))` "
    "and `position.add_(1)`, with `position` an int64 GPU tensor of shape (1,). Mask the entries beyond `position`."
)


def _concatenated(place: Location) -> tuple[str, str]:
    """The two tensors that a call of torch.cat on a line takes, as written."""
    statement = statement_at(place.file, place.line)
    for node in ast.walk(statement) if statement is not None else ():
        if (
            isinstance(node, ast.Call)
            and node.args
            and isinstance(node.args[0], (ast.List, ast.Tuple))
        ):
            parts = node.args[0].elts
            if len(parts) == 2:
                return shortened(ast.unparse(parts[0])), shortened(ast.unparse(parts[1]))
    return "cache", "new"


def for_read(op: Op, *, is_truth: bool = False) -> str:
    """In the place of a call, or an index, that reads a value unasked. `is_truth`: it asks whether something is so."""
    place = op.location
    for name, fix in _GREATEST.items():
        if is_truth and written(place, frozenset(), frozenset({name})):
            return fix
    if place is None or written(place, _READING, _CONVERTING):
        return ""
    if factor := keyword_given(place, _FACTORS):
        return (
            f"Multiply the tensor instead: `x.add_(scale * y)`. `{factor}` takes a Python number, so a GPU tensor "
            f"passed as `{factor}` causes a host sync."
        )
    for name, fix in _CALLS.items():
        if written(place, frozenset({name}), frozenset({name})):
            return fix
    statement = statement_at(place.file, place.line)
    parts = ast.walk(statement) if isinstance(statement, (ast.Assign, ast.Return, ast.Expr)) else ()
    return _INDEX if any(_indexes_by_name(part) for part in parts) else ""


def for_mask(op: Op, iteration: Iteration) -> Cure | None:
    """Instead of torch's look whether a mask is causal; None if this read is none.

    The operators before it are then those of one line, which names none of them. A mask that is causal is not read
    again: attention takes the argument in its place.
    """
    last = iteration.ops[max(op.index + 1 - len(_DETECTING), 0) : op.index + 1]
    if tuple(each.base_name for each in last) != _DETECTING:
        return None
    is_one_line = all(each.location == op.location for each in last)
    if not is_one_line or written(op.location, frozenset(_DETECTING), frozenset()):
        return None
    _, compared, *_ = last
    mask = compared.inputs[0].storage
    later = (each for each in iteration.ops[op.index + 1 :] if each.location == op.location)
    reader = next((each for each in later if any(u.storage == mask for u in each.inputs)), None)
    is_causal = reader is None or reader.base_name == compared.base_name
    text = (
        f"Pass is_causal={is_causal} to nn.TransformerEncoder, tgt_is_causal={is_causal} to nn.TransformerDecoder and "
        f"nn.Transformer. In this run the mask is {'' if is_causal else 'not '}causal. Without the argument, they "
        "compare the mask with a causal one, which is a host sync."
    )
    return Cure(text, edits=with_causality(op.location, is_causal=is_causal))


def _indexes_by_name(node: ast.AST) -> bool:
    """Whether it is `x[i]`, or `x[:n]`, of names that may be tensors."""
    if not isinstance(node, ast.Subscript):
        return False
    return any(isinstance(part, (ast.Name, ast.Attribute)) for part in ast.walk(node.slice))


def for_copy(transfer: Transfer, iteration: Iteration) -> str:
    """Instead of a copy that a packed sequence, or indexing, makes."""
    if written(transfer.op.location, _PACKING, _PACKING):
        return _PACKED
    if not transfer.to_device or not transfer.hidden:
        return ""
    stored = transfer.op.base_name not in ("index", "_unsafe_index")
    if stored and transfer.source is transfer.op.inputs[-1]:
        return (
            "Store a GPU tensor, or store the number with index_fill_, masked_fill_ or torch.where, which "
            "make no copy."
        )
    return _for_index(transfer.op.location, _copy_before(transfer, iteration))


def _copy_before(transfer: Transfer, iteration: Iteration) -> Location | None:
    """The last copy to the CPU before a tensor that the step itself makes there: it may follow from that copy."""
    if any(one.storage == transfer.source.storage for one in iteration.externals):
        return None
    earlier = map(transfer_of, iteration.ops[: transfer.op.index])
    copies = [one.op.location for one in earlier if one is not None and not one.to_device]
    return copies[-1] if copies else None


def _for_index(place: Location | None, copied: Location | None) -> str:
    """Instead of an index on the CPU: a list on the line is constant, and a variable may change.

    `copied` is the line whose copy to the CPU the variable may depend on, as that of a matcher does.
    """
    statement = statement_at(place.file, place.line) if place is not None else None
    indexed = [n for n in ast.walk(statement) if isinstance(n, ast.Subscript)] if statement else []
    for node in indexed:
        if made := made_indices(node):
            code = ast.unparse(made[0])
            return f"Create the index on the GPU: `{code[:-1]}, {device_of_indexed(node)})`."
    slices = [node.slice for node in indexed]
    parts = [
        part for each in slices for part in (each.elts if isinstance(each, ast.Tuple) else [each])
    ]
    if any(isinstance(part, ast.List) for part in parts):
        return (
            "Index with a slice, x[:, -1:] instead of x[:, [-1]], or with a GPU tensor, such as a buffer of "
            "the module."
        )
    varying = [part for part in parts if not isinstance(part, (ast.Constant, ast.Slice))]
    names = {ast.unparse(part) for part in varying if isinstance(part, (ast.Name, ast.Attribute))}
    texts = {ast.unparse(part) for part in varying}
    name = names.pop() if len(names) == 1 else texts.pop() if len(texts) == 1 else "index"
    if copied is not None:
        return (
            f"If `{name}` depends on the copy to the CPU at {place_words(copied, place)}, end the captured region "
            f"there. Capture the rest of the step as another region, which takes `{name}` as a GPU tensor. Otherwise "
            "move it to the GPU before the step."
        )
    if not name.replace(".", "").isidentifier():
        return f"Move the tensors that `{name}` is computed from to the GPU before the step."
    return (
        f"Add a line before the step, which moves `{name}` to the GPU: "
        f'`{name} = torch.as_tensor({name}, device="cuda")`.'
    )


_FLEX = frozenset({"flex_attention"})
_COMPILED = (
    "Call `torch.compile(flex_attention)`: only PyTorch's eager implementation builds this constant. If the call is "
    "compiled already, suppress this finding: graphdoctor runs compiled code eagerly."
)


def for_python_data(op: Op, iteration: Iteration) -> str:
    """What to write instead of a tensor built from Python data; "" if it is a constant, to be built once."""
    place = op.location
    if place is None:
        return ""
    if written(place, _NESTING, _NESTING):
        return NESTED
    if written(place, _FLEX, _FLEX):
        return _COMPILED
    if number := _passed_number(op, place):
        return number
    if _takes_tensors(place, iteration):
        return STACK
    statement = statement_at(place.file, place.line)
    is_store = isinstance(statement, ast.Assign) and any(
        isinstance(target, ast.Subscript) for target in statement.targets
    )
    if is_store and not isinstance(statement.value, (ast.Call, ast.List)):  # type: ignore[union-attr]
        return ELEMENT
    if copied := _copied_numbers(op, place, iteration):
        return copied
    changed = {change.path.rpartition(".")[2] for change in iteration.changes}
    names = names_in(statement) if statement is not None else frozenset()
    if any(name.rpartition(".")[2] in changed for name in names):
        return (
            "Its numbers change: keep each in a 0-d GPU tensor that the step updates in place, and join them with "
            "`torch.stack([a, b])`. Or pass the tensor as an input of the step."
        )
    if _takes_list_of_batch(statement, place):
        return (
            "If the numbers follow from the batch, build the tensor with the batch, and pass it as an input of the "
            "step: a replay keeps the captured numbers. If they are constant, build it once, as a buffer of the module."
        )
    return ""


def _takes_list_of_batch(statement: ast.stmt | None, place: Location) -> bool:
    """Whether a list comprehension computes the numbers: on the line, or where a variable of the line is bound."""
    scope = scope_at(place.file, place.line)
    names = names_in(statement) if statement is not None else frozenset()
    bound = (each for each in statements_of(scope) if each.lineno < place.line) if scope else ()
    sources = [statement, *(each for each in bound if names & targets_of(each))]
    return any(isinstance(n, ast.ListComp) for each in sources if each for n in ast.walk(each))


def _passed_number(op: Op, place: Location) -> str:
    """Instead of a number that the user's line passes to the function that builds a tensor of it; or ""."""
    caller = op.stack[0] if op.stack else None
    if caller is None or is_library(caller.file) or op.inputs[0].shape != ():
        return ""
    statement = statement_at(caller.file, caller.line)
    for node in ast.walk(statement) if statement is not None else ():
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        is_theirs = is_library(place.file)
        given = [*node.args] if is_theirs else [*_given_to(place, node)]
        number = next(filter(_is_number, given), None)
        if number is not None:
            cure = (
                "Use torch.where or masked_fill, which take numbers,"
                if is_theirs
                else f"Let `{called}()` compute with the number,"
            )
            return (
                f"`{called}()` copies the number `{ast.unparse(number)}` of {line_of(caller)} to the GPU. {cure} or"
                " pass a GPU tensor that exists before the step."
            )
    return ""


def _given_to(place: Location, call: ast.Call) -> Iterator[ast.expr]:
    """The arguments from which a line of the called function builds its tensor."""
    function, statement = scope_at(place.file, place.line), statement_at(place.file, place.line)
    if isinstance(function, ast.Module) or function is None or statement is None:
        return
    if function.name != last_name(call.func):
        return
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if isinstance(call.func, ast.Attribute) and names[:1] == ["self"]:
        del names[0]
    read = names_in(statement)
    pairs = [
        *zip(names, call.args, strict=False),
        *((each.arg, each.value) for each in call.keywords),
    ]
    yield from (value for name, value in pairs if name in read)


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _copied_numbers(op: Op, place: Location, iteration: Iteration) -> str:
    """Instead of numbers that the function computes on the CPU from a copy, such as advantages; "" if there is none."""
    statement, scope = statement_at(place.file, place.line), scope_at(place.file, place.line)
    if statement is None or scope is None:
        return ""
    earlier = map(transfer_of, iteration.ops[: op.index])
    places = (one.op.location for one in earlier if one is not None and not one.to_device)
    lines = {each.line for each in places if each is not None and each.file == place.file}
    before = [other for other in statements_of(scope) if other.lineno < place.line]
    names = set(names_in(statement))
    for other in reversed(before):
        appended = changed_name(Location(place.file, other.lineno), "append")
        if not names & {*targets_of(other), appended}:
            continue
        if other.lineno in lines:
            return (
                f"Its numbers come from the copy to the CPU on line {other.lineno}. Compute them on the GPU, from the "
                "tensor before that copy, and join those of a loop with `torch.stack(values)`. Or end the captured "
                "region at that copy, and pass the tensor to the next region."
            )
        names |= {name for node in own_nodes(other) for name in names_in(node)}
    return ""


def _takes_tensors(place: Location, iteration: Iteration) -> bool:
    """Whether a list on the line has names of tensors on the GPU: torch reads those without an operator."""
    statement, scope = statement_at(place.file, place.line), scope_at(place.file, place.line)
    if statement is None or scope is None:
        return False
    lines = tensor_lines(iteration)
    names = {
        part.id
        for node in ast.walk(statement)
        if isinstance(node, (ast.List, ast.Tuple)) and isinstance(node.ctx, ast.Load)
        for part in node.elts
        if isinstance(part, ast.Name)
    }
    bound = (
        other
        for other in statements_of(scope)
        if other.lineno <= place.line and other is not statement and names & targets_of(other)
    )
    return any((place.file, each.lineno) in lines and not reads(each) for each in bound)


def for_stream(fix: str, switch: StreamSwitch | None) -> str:
    """A cure with the user's own name for its `side`, where the line that chose the stream has one."""
    place = switch.location if switch is not None else None
    called = call_at(place, "stream") or call_at(place, "set_stream")
    if called is None or not called[1] or "(" in called[1][0]:
        return fix
    return re.sub(r"\bside\b", lambda _: called[1][0], fix)


def for_settled_branch(use: TensorUse, iteration: Iteration) -> str:
    """In the place of a branch on a value that no step changes, such as whether a layer was initialized; or ""."""
    names = constant_state(use, iteration)
    if not names:
        return ""
    return (
        f"No recorded step changes {names_text(names)}: evaluate this condition once before the step. Keep the result "
        "in a Python attribute, and branch on that attribute."
    )


def for_branch(branch: Branch) -> str:
    """In the place of a branch that is no choice of two values."""
    if branch.kind == "assert" or (branch.raises and branch.orelse is None):
        return (
            "Check on the GPU with torch._assert_async(condition), which takes the condition that must "
            "hold. Or check before the step, or after the replay."
        )
    return _LOOP if branch.kind in ("while", "for") or branch.ends_loop else ""


_LOOP = (
    "Run a fixed number of iterations and select each update with torch.where. Or capture one "
    "iteration and keep the loop in Python."
)


def for_state_branch(branch: Branch, state: str = "") -> str:
    """In the place of a branch on Python state that changes, by what its sides do. `state` names it, if known."""
    if branch.kind in ("while", "for"):
        return _LOOP
    statement = statement_at(branch.file, branch.line)
    if isinstance(statement, ast.If) and any(map(_acts, statement.body)):
        return (
            f"Move `{branch.text}` with its body after the step: between replays it runs in eager. Or make one step "
            "of as many calls as the branch counts, without the branch."
        )
    nodes = ast.walk(statement) if statement is not None else ()
    found = next((node.test for node in nodes if isinstance(node, (ast.If, ast.IfExp))), None)
    test = ast.unparse(found) if found is not None and _is_elementwise(found) else ""
    test = test if test and len(test) < _LONGEST_TEST else "condition"
    return (
        f"Select on the GPU: `torch.where({test}, a, b)` for a value, `x.copy_(torch.where({test}, new, x))` for a "
        f"tensor that one side changes. Keep {state or 'the state of the condition'} in a GPU tensor that the step "
        "updates in place. Or move the branch outside the step, and capture one graph per branch."
    )


_LONGEST_TEST = 40
_ACTING = frozenset({"step", "backward", "load_state_dict", "zero_grad"})


def _acts(statement: ast.stmt) -> bool:
    """Whether it calls what torch.where cannot select, such as `optimizer.step()`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr in _ACTING


def _is_elementwise(test: ast.expr) -> bool:
    """Whether the expression is the same of GPU tensors as of Python numbers."""
    return not any(
        isinstance(
            part, (ast.Not, ast.BoolOp, ast.Call, ast.IfExp, ast.Is, ast.IsNot, ast.In, ast.NotIn)
        )
        or (isinstance(part, ast.Compare) and len(part.ops) > 1)
        for part in ast.walk(test)
    )


def for_state_number(state: str) -> str:
    """In the place of Python numbers that depend on state which changes."""
    return (
        f"Keep {state} in a GPU tensor that the step updates in place, and compute from it what this line reads: "
        "`torch.where(condition, a, b)` instead of `a if condition else b`, `torch.clamp` instead of `min` and `max`."
    )
