"""The statement that constructs an optimizer -> the same statement with what a capture needs of the optimizer."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from os.path import basename
from typing import NamedTuple

from graphdoctor.rules.causes.edits import instead_of_call, source_of
from graphdoctor.rules.causes.source import own_nodes, statement_at, targets_of
from graphdoctor.source.trees import holds, last_name, statements_of, tree_of
from graphdoctor.values.finding import Edit
from graphdoctor.values.locations import Location, is_library

_LONGEST = 200


class Construction(NamedTuple):
    """A statement of the user's, and the call in it that returns the optimizer."""

    file: str
    statement: ast.stmt
    call: ast.Call

    @property
    def is_chosen(self) -> bool:
        """Whether the class is a value: `getattr(optim, name)(...)`, `CLASSES[name](...)`."""
        return isinstance(self.call.func, (ast.Call, ast.Subscript))

    @property
    def is_statement(self) -> bool:
        """Whether the statement binds just what the call returns."""
        return self.call is getattr(self.statement, "value", None)

    def capturable(self, *, tensor_rate: bool) -> tuple[str, tuple[Edit, ...]]:
        """The cure, with the learning rate as a tensor if the program changes it, and its edits."""
        has_gpu = self._asks_for_gpu()
        given = f"capturable={has_gpu or True}"
        args: list[ast.expr | ast.keyword] = [*self.call.args, *self.call.keywords]
        rate = next((each for n, each in enumerate(args) if _is_rate(n, each)), None)
        if tensor_rate:
            value = "..." if rate is None else source_of(self.file, _value(rate))
            device = f'"cuda" if {has_gpu} else "cpu"' if has_gpu else '"cuda"'
            given = f"lr=torch.tensor({value}, device={device}), {given}"
            args = [each for each in args if each is not rate]
        texts = [source_of(self.file, each) for each in args]
        chooses = source_of(self.file, self.call.func)
        new = f"{chooses}({', '.join([*texts, given])})"
        code = ast.unparse(self.statement).replace(ast.unparse(self.call), " ".join(new.split()))
        lines = _lines(self.file, self.statement)
        fix = f"Change {lines} to `{code}`."
        if len(code) > _LONGEST:
            fix = f"Pass `{given}` to `{chooses}()` ({lines})."
        if not self._names_gpu():
            return f"{fix} Move the model to the GPU first: `capturable=True` fails on the CPU.", ()
        if self.is_chosen:
            more = f"`{chooses}` chooses the class. SGD, for example, has no `capturable`."
            return f"{fix} {more}", ()
        is_complete = rate is not None or not tensor_rate
        return fix, instead_of_call(self.file, self.call, new) if is_complete else ()

    def _names_gpu(self) -> bool:
        """Whether the file names a GPU: `.cuda()`, `"cuda:0"`, or a device that another file chose."""
        tree = tree_of(self.file)
        names = {
            getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "value", None)
            for node in (ast.walk(tree) if tree is not None else ())
            if isinstance(node, (ast.Attribute, ast.Name))
            or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        }
        return any("cuda" in str(name).lower() or "device" in str(name).lower() for name in names)

    def _asks_for_gpu(self) -> str:
        """The call with which the program asks whether there is a GPU; "" in a program that needs one."""
        tree = tree_of(self.file)
        calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call)) if tree is not None else ()
        texts = (ast.unparse(call) for call in calls if last_name(call.func) == "is_available")
        return next((text for text in texts if text == "torch.cuda.is_available()"), "")


def construction_of(frames: Iterable[Location | None], class_name: str) -> Construction | None:
    """Where the optimizer whose step is on these lines is constructed; None if several statements may be it."""
    own = [frame for frame in frames if frame is not None and not is_library(frame.file)]
    name = next(filter(None, map(_stepped, own)), "")
    for frame in own:
        tree = tree_of(frame.file)
        if tree is None:
            continue
        parts: list[ast.stmt | ast.Module] = [n for n in tree.body if holds(n, frame.line)]
        parts.append(tree)
        found = (_constructed_in(part, frame.file, name, class_name) for part in parts)
        if first := next(filter(None, found), None):
            return first
    return None


def _constructed_in(
    part: ast.stmt | ast.Module, file: str, name: str, class_name: str
) -> Construction | None:
    """The only call of the class, bound to the name or not; else the only call bound to it whose class is a value."""
    made = [
        Construction(file, statement, node)
        for statement in statements_of(part)
        for node in own_nodes(statement)
        if isinstance(node, ast.Call)
    ]
    bound = [each for each in made if name in map(_last, targets_of(each.statement))]
    of_class = [
        each for each in made
        if last_name(each.call.func) == class_name
        and all(keyword.arg != "capturable" for keyword in each.call.keywords)
    ]  # fmt: skip
    of_value = [each for each in bound if each.is_chosen and each.is_statement]
    for found in ([each for each in of_class if each in bound], of_class, of_value):
        if len(found) == 1:
            return found[0]
    return None


def _stepped(place: Location) -> str:
    """`optimizer` of `self.optimizer.step()` and of `scaler.step(optimizer)`."""
    statement = statement_at(place.file, place.line)
    for node in own_nodes(statement) if statement is not None else ():
        is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if is_method and last_name(node.func) == "step":  # type: ignore[attr-defined]
            return last_name(node.args[0] if node.args else node.func.value)  # type: ignore[attr-defined]
    return ""


def _is_rate(number: int, argument: ast.expr | ast.keyword) -> bool:
    if isinstance(argument, ast.keyword):
        return argument.arg == "lr"
    return number == 1


def _value(argument: ast.expr | ast.keyword) -> ast.expr:
    return argument.value if isinstance(argument, ast.keyword) else argument


def _lines(file: str, statement: ast.stmt) -> str:
    """ "line 47 of train.py", "lines 61-63 of train.py"."""
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    numbers = f"line {first}" if first == last else f"lines {first}-{last}"
    return f"{numbers} of {basename(file)}"


def _last(name: str) -> str:
    return name.rpartition(".")[2]
