"""Finds the optimizer steps that torch refuses to capture."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from os.path import basename
from typing import NamedTuple

from msgspec.structs import replace

from graphdoctor.rules.causes.edits import instead_of_call, source_of
from graphdoctor.rules.causes.numbers import (
    OUTSIDE,
    has_no_capturable_form,
    options_advice,
    rates_change,
    stored_rate_advice,
)
from graphdoctor.rules.causes.source import own_nodes, statement_at, targets_of
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_event, at_op
from graphdoctor.source.trees import calls_in, holds, last_name, scope_at, statements_of, tree_of
from graphdoctor.values.finding import Cure
from graphdoctor.values.host_events import RefusedOptimizer
from graphdoctor.values.locations import Location, is_library
from graphdoctor.values.recording import Recording

_SCHEDULER = "Set the learning rate outside the captured step, as with scheduler.step()."


class NonCapturableOptimizer(RecordingRule):
    """The optimizer keeps its step count on the CPU.

    Adam, AdamW, RMSprop and similar optimizers count steps in CPU tensors and pass numbers derived from
    the count to their kernels. A replay would always apply the captured bias correction, so PyTorch
    rejects the capture of such an optimizer.

    This rule has no false alarms: PyTorch raises an error in the first captured step.

    Construct the optimizer with `capturable=True`, which keeps the count on the GPU. Its parameters have
    to be on the GPU before the first step. If the program changes the learning rate, pass it as a GPU
    tensor: a number is frozen at capture. Call `scheduler.step()` outside the captured step: it updates
    the tensor in place. Adafactor has no `capturable`: leave its `step()` outside the captured region.
    `graphdoctor.capture` of a step makes its optimizers capturable itself.
    """

    id = "GD111"
    name = "non-capturable-optimizer"
    effect = "capture-fails"
    explains = (
        "GD101",
        "GD103",
        "GD104",
        "GD201",
        "GD202",
        "GD203",
        "GD204",
        "GD205",
        "GD209",
        "GD211",
    )
    is_glue = True
    evidence = MEASURED
    fix = "Construct the optimizer with `capturable=True`."

    def check(self, recording: Recording) -> Iterator[Hit]:
        refused = list(_refused(recording))
        yield from refused
        names = [info.class_name for info in recording.optimizers if info.capturable is False]
        if refused or not names or recording.mode != "training":
            return
        for iteration in recording.captured:
            first = next((op for op in iteration.ops if op.phase == "optimizer"), None)
            if first is not None:
                cure = _cure(recording, (first.location, *first.stack), names[0])
                yield at_op(iteration.index, first, _text(names[0]), cure=cure)

    @staticmethod
    def bad() -> object:
        from types import SimpleNamespace

        import torch

        model = torch.nn.Linear(16, 4, device="cuda")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()  # <- GD111
            return loss

        inputs = (torch.randn(8, 16, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state=[model, optimizer])

    @staticmethod
    def good() -> object:
        from types import SimpleNamespace

        import torch

        model = torch.nn.Linear(16, 4, device="cuda")
        rate = torch.tensor(0.01, device="cuda")
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=True)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        inputs = (torch.randn(8, 16, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state=[model, optimizer])


def _refused(recording: Recording) -> Iterator[Hit]:
    for iteration in recording.captured:
        for event in iteration.events_of(RefusedOptimizer):
            name = event.class_name
            if has_no_capturable_form(recording.optimizers, name):
                hit = at_event(
                    iteration.index,
                    event,
                    (
                        f"PyTorch refuses to capture {name}'s step: it computes with Python numbers, and "
                        "has no capturable=True."
                    ),
                )
                yield replace(hit, cure=Cure(OUTSIDE))
            else:
                hit = at_event(iteration.index, event, _text(name))
                cure = _cure(recording, (event.location, *event.stack), name)
                yield replace(hit, cure=cure)


def _cure(recording: Recording, frames: tuple[Location | None, ...], class_name: str) -> Cure:
    """The cure with what a rate that changes needs, too: GD204 would be next."""
    if advice := options_advice(recording):
        return Cure(advice)
    stored = stored_rate_advice(frames)
    is_scheduled = any(
        info.is_scheduled for info in recording.optimizers if info.class_name == class_name
    )
    changes = rates_change(recording)
    tensor_rate = bool(stored) or changes or is_scheduled
    more = stored or (_SCHEDULER if changes else "")
    made = construction_of(frames, class_name)
    if made is not None:
        cure = made.capturable(
            tensor_rate=tensor_rate, default_rate=default_rate_of(class_name), more=more
        )
        return replace(cure, edits=()) if stored else cure
    rate = ', lr=torch.tensor(lr, device="cuda")' if tensor_rate else ""
    return Cure(f"Construct {class_name} with `capturable=True{rate}`. {more}".rstrip())


def default_rate_of(class_name: str) -> str:
    """The learning rate of this class of torch's, as code; "..." where it has none."""
    import torch

    made_by = getattr(torch.optim, class_name, None)
    found = inspect.signature(made_by).parameters.get("lr") if made_by is not None else None
    return repr(found.default) if found is not None and isinstance(found.default, float) else "..."


def _text(class_name: str) -> str:
    return (
        f"{class_name} keeps its step count on the CPU, because it was constructed without "
        "`capturable=True`. PyTorch refuses to capture `optimizer.step()`."
    )


_LONGEST = 66  # columns of a statement on one line
_ASKS_FOR_GPU = frozenset({"torch.cuda.is_available()", "torch.accelerator.is_available()"})


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

    def capturable(self, *, tensor_rate: bool, default_rate: str = "...", more: str = "") -> Cure:
        """The cure, with the learning rate as a tensor if the program changes it, and its edits.

        `default_rate` is the code of the class's own learning rate. `more` says what to do after the
        change. The code comes last: a page shows it on separate lines.
        """
        on_gpu = self._decides_on_gpu()
        given = [f"capturable={on_gpu or True}"]
        args: list[ast.expr | ast.keyword] = [*self.call.args, *self.call.keywords]
        rate = next((each for n, each in enumerate(args) if _is_rate(n, each)), None)
        value = default_rate
        if rate is not None:
            value = source_of(self.file, rate.value if isinstance(rate, ast.keyword) else rate)
        if tensor_rate:
            device = f'"cuda" if {on_gpu} else "cpu"' if on_gpu else '"cuda"'
            given = [f"lr=torch.tensor({value}, device={device})", *given]
            args = [each for each in args if each is not rate]
        texts = [*(source_of(self.file, each) for each in args), *given]
        chooses = source_of(self.file, self.call.func)
        is_moved, sentences = self._names_gpu(), []
        if not is_moved:
            sentences.append("Move the model to the GPU first: `capturable=True` fails on the CPU.")
        elif self.is_chosen:
            sentences.append(
                f"`{chooses}` chooses the class. SGD, for example, has no `capturable`."
            )
        first, last = self.statement.lineno, self.statement.end_lineno or self.statement.lineno
        numbers = f"line {first}" if first == last else f"lines {first}-{last}"
        lines = f"{numbers} of {basename(self.file)}"
        end = f". {more} The statement becomes:" if more else ":"
        sentences.append(f"Pass `{', '.join(given)}` to `{chooses}()` ({lines}){end}")
        parts = [*(ast.unparse(each) for each in args), *given]
        on_one_line = (p if "\n" in text else text for p, text in zip(parts, texts, strict=True))
        code = self._with_arguments([*on_one_line])
        is_complete = is_moved and not self.is_chosen and (value != "..." or not tensor_rate)
        new = f"{chooses}({', '.join(texts)})"
        edits = instead_of_call(self.file, self.call, new) if is_complete else ()
        return Cure(" ".join(sentences), code, edits)

    def _with_arguments(self, texts: list[str]) -> tuple[str, ...]:
        """The lines of the statement with these arguments: several if one is too long."""
        before, after = ast.unparse(self.statement), ast.unparse(self.call)
        chooses = ast.unparse(self.call.func)
        code = before.replace(after, f"{chooses}({', '.join(texts)})")
        if len(code) > _LONGEST:
            lines = [""]
            for each in texts:
                if lines[-1] and len(lines[-1]) + len(each) > _LONGEST - len("    , ,"):
                    lines.append("")
                lines[-1] += f"{' ' if lines[-1] else ''}{each},"
            arguments = "\n".join(f"    {each}" for each in lines).removesuffix(",")
            code = before.replace(after, f"{chooses}(\n{arguments})")
        return (*code.split("\n"),)

    def _names_gpu(self) -> bool:
        """Whether the file names a GPU: `.cuda()`, `"cuda:0"`, or a device that another file chose.

        Lightning has moved its module when it calls `configure_optimizers()`.
        """
        tree = tree_of(self.file)
        scope = scope_at(self.file, self.statement.lineno)
        if getattr(scope, "name", "") == "configure_optimizers":
            return True
        names = {
            getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "value", None)
            for node in (ast.walk(tree) if tree is not None else ())
            if isinstance(node, (ast.Attribute, ast.Name))
            or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        }
        return any("cuda" in str(name).lower() or "device" in str(name).lower() for name in names)

    def _decides_on_gpu(self) -> str:
        """The program's own expression for "on a GPU", such as `args.cuda`; "" in a program that needs a GPU.

        A switch such as --no-cuda decides too, so the call that checks for a GPU is the last choice.
        """
        tree = tree_of(self.file)
        statements = statements_of(tree) if tree is not None else []
        scope = scope_at(self.file, self.statement.lineno)
        for each in statements:
            if not isinstance(each, ast.Assign) or each.lineno >= self.statement.lineno:
                continue
            target = each.targets[0]
            is_seen = scope_at(self.file, each.lineno) in (tree, scope)
            if is_seen and len(each.targets) == 1 and isinstance(target, (ast.Name, ast.Attribute)):
                if test := _gpu_chosen_by(each.value):
                    return f"({ast.unparse(target)}{test})"
                if _asks_for_gpu(each.value) and _is_switch(each.value):
                    return ast.unparse(target)
        is_asked = any(_asks_for_gpu(each) == "torch.cuda.is_available()" for each in statements)
        return "torch.cuda.is_available()" if is_asked else ""


def _gpu_chosen_by(value: ast.expr) -> str:
    """What holds on a GPU for a device that is chosen so, or for its name: ` == "cuda"`; "" for anything else."""
    match value:
        case ast.Call(args=[ast.IfExp() as inner]) if last_name(value.func) == "device":
            return '.type == "cuda"' if _gpu_chosen_by(inner) else ""
        case ast.IfExp(body=ast.Constant(value=str(name))) if name.startswith("cuda"):
            return f' == "{name}"'
        case ast.IfExp(orelse=ast.Constant(value="cpu")) if _asks_for_gpu(value.test):
            return ' != "cpu"'
    return ""


def _is_switch(value: ast.expr) -> bool:
    """Whether an expression that checks for a GPU is true or false, and no device."""
    is_call = isinstance(value, ast.Call) and last_name(value.func) == "is_available"
    return is_call or isinstance(value, ast.BoolOp)


def _asks_for_gpu(node: ast.AST) -> str:
    """The first call in a node that checks whether there is a GPU; "" without one."""
    texts = (ast.unparse(call) for call in calls_in(node) if last_name(call.func) == "is_available")
    return next((text for text in texts if text in _ASKS_FOR_GPU), "")


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


def _last(name: str) -> str:
    return name.rpartition(".")[2]
