"""Moves the statements of a training step to a function that a short class replays, with torch alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from graphdoctor.strategies.patch.edits.capture_step import CaptureStep, Wrapper
from graphdoctor.strategies.patch.edits.edit import NoProposal, Proposal
from graphdoctor.strategies.patch.read_values import READS
from graphdoctor.strategies.patch.source import source_of
from graphdoctor.target.program.names import Names, names_in_file
from graphdoctor.values.finding import Finding
from graphdoctor.values.program import Exactness, ProgramStep

_CLASS = "GraphedStep"
_CODE = f'''\
class {_CLASS}:
    """Replays a training step as a CUDA graph. Calls that differ from the first run eagerly."""

    def __init__(self, step, warmup=3):
        self.step, self.warmup, self.key, self.graph = step, warmup, None, None
        self.lends = "non_blocking" in str(step.__code__.co_consts)  # its pinned batches stay as they are

    def __call__(self, *args):
        if self.key is None:
            self.prepare(args)
        if self.stream is None or self.key_of(args) != self.key:
            return self.each(torch.Tensor.detach, self.step(*args))
        if self.warmup > 0:
            self.warmup -= 1
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                result = self.each(torch.Tensor.detach, self.step(*args))
            torch.cuda.current_stream().wait_stream(self.stream)
            return result
        if self.graph is None:  # a capture executes nothing: the replay below makes the step
            self.static = [a.detach().clone().cuda() if self.is_input(a) else a for a in args]
            self.graph = torch.cuda.CUDAGraph()
            # Data loaders may use CUDA in other threads meanwhile.
            with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
                self.result = self.each(torch.Tensor.detach, self.step(*self.static))
        for static, given in zip(self.static, args):
            if self.is_input(static):  # the host does not wait for a copy from memory that is only ours
                unblocked = self.lends or given.is_cpu and not given.is_pinned()
                static.copy_(given.pin_memory() if given.is_cpu else given, non_blocking=unblocked)
        self.graph.replay()
        return self.each(torch.clone, self.result)

    def prepare(self, args):
        self.stream = torch.cuda.Stream() if torch.cuda.is_available() else None
        found = [*args, *(self.step.__globals__.get(n) for n in self.step.__code__.co_names)]
        self.modules = [each for each in found if isinstance(each, torch.nn.Module)]
        self.optimizers = [each for each in found if isinstance(each, torch.optim.Optimizer)]
        for optimizer in self.optimizers if self.stream else ():
            for group in optimizer.param_groups:
                if "capturable" in group:
                    group["capturable"] = True
                    if "fused" in group:
                        group["fused"], group["foreach"] = True, False
            for parameter, state in optimizer.state.items():
                if "step" in state:
                    state["step"] = torch.as_tensor(state["step"], device=parameter.device)
        self.key = self.key_of(args)

    def key_of(self, args):
        options = [{{**g, "params": 0}} for each in self.optimizers for g in each.param_groups]
        inputs = [(a.shape, a.dtype) if self.is_input(a) else a for a in args]
        return inputs, options, [module.training for module in self.modules]

    def is_input(self, arg):
        return isinstance(arg, torch.Tensor) and not arg.requires_grad

    def each(self, function, result):
        if isinstance(result, (tuple, list)):
            return type(result)(self.each(function, part) for part in result)
        return function(result) if isinstance(result, torch.Tensor) else result
'''
# What the class takes: reads that move below the step, copies of arguments, optimizers, nodes of an earlier step,
# other shapes, and what is no hazard.
_TAKES = frozenset(
    {"GD101", "GD102", "GD103", "GD104", "GD108", "GD111", "GD117", "GD212", "GD301", "GD302"}
)
_SCHEDULES = re.compile(r"lr_scheduler|\w*[a-z]LR|get_\w*schedule\w*")
_OPTIONS = frozenset({"lr", "momentum", "betas", "weight_decay"})
_READERS = frozenset({"print", "float", "int", "bool"})
_RANDOM = frozenset({"random", "np", "numpy"})
_BRANCHES = (ast.If, ast.IfExp, ast.While, ast.Match, ast.Try)
_INSTEAD = "; `--diff` without `--plain` takes it, by `graphdoctor.capture`"


class GraphStep:
    """Makes a function of the statements of a step, and a graph of the function by a class of the program's own.

    The class guards shapes, objects, optimizer options and training flags. Whatever else a captured step studies
    and guards on its first calls has to be the same in all steps, so that less is taken.
    """

    name = "graph the step"
    exactness: Exactness = "rounding"

    def propose(self, step: ProgramStep) -> Proposal:
        assert step.report is not None
        if step.mode != "training":
            raise NoProposal(f"`--plain` changes training steps only{_INSTEAD}")
        if step.passes > 1:
            raise NoProposal(f"it accumulates gradients{_INSTEAD}")
        if step.host_values:
            raise NoProposal(f"`{step.host_values[0]}` is a value of the host{_INSTEAD}")
        for finding in step.report.findings:
            if finding.rule not in _TAKES:
                raise NoProposal(f"{_described(finding)}{_INSTEAD}")
        proposal = CaptureStep(_WRAPPER).propose(step)
        text = source_of(step.location.file)
        if reason := _moves_options(ast.parse(text)):
            raise NoProposal(f"{reason}{_INSTEAD}")
        if _CLASS in names_in_file(text):
            raise NoProposal(f"the name {_CLASS} is taken")
        return replace(proposal, edit=self.name)


def _described(finding: Finding) -> str:
    where = f" at line {finding.location.line}" if finding.location is not None else ""
    return f"the class has no cure for {finding.rule}, {finding.name}{where}"


def _moves_options(tree: ast.Module) -> str:
    """What in a file changes the learning rate, or another option that a graph holds, while it trains."""
    for node in ast.walk(tree):
        names: Iterable[str] = ()
        if isinstance(node, ast.Attribute):
            names = (node.attr,)
        elif isinstance(node, ast.Name):
            names = (node.id,)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = (alias.name.rpartition(".")[2] for alias in node.names)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            option = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if option in _OPTIONS:
                return f'line {node.lineno} assigns the option "{option}", which the graph would freeze'
        for name in names:
            if _SCHEDULES.fullmatch(name):
                line = getattr(node, "lineno", 0)
                return f"`{name}` (line {line}) changes the learning rate, which the graph would freeze"
    return ""


def _check(functions: Sequence[ast.FunctionDef]) -> None:
    """Raises NoProposal for what one graph of a function, made once, would get wrong."""
    for function in functions[:1]:
        reason = _refusal(function)
        if not reason and len(functions) > 1:
            reason = "it has a branch, and one graph holds one path"
        if reason:
            raise NoProposal(f"{reason}{_INSTEAD}")


def _refusal(function: ast.FunctionDef) -> str:
    parameters = function.args
    arguments = {each.arg for each in (*parameters.posonlyargs, *parameters.args)}
    if parameters.kwonlyargs or parameters.vararg or parameters.kwarg:
        return f"`{function.name}()` takes more than positional arguments"
    if "self" in arguments:
        return f"`{function.name}()` is a method, or takes `self`"
    stored = Names(function.body).stored
    for node in (n for statement in function.body for n in ast.walk(statement)):
        if isinstance(node, _BRANCHES) and not _is_test_of_none(node, stored):
            return "it has a branch, and one graph holds one path"
        if isinstance(node, ast.AugAssign) and _base(node.target) in arguments:
            return f"it changes its argument `{_base(node.target)}`, of which the graph has a copy"
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            if _base(node) not in stored - arguments:
                return f"it assigns `{ast.unparse(node)}`, which a replay does not"
            continue
        if (holder := _dictionary(node)) in arguments:
            return f"its argument `{holder}` is a dictionary"
        if isinstance(node, ast.comprehension) and (holder := _iterated(node)) in arguments:
            return f"its argument `{holder}` is a list or a dictionary"
        if isinstance(node, ast.Call) and (reason := _refusal_of_call(node, arguments)):
            return reason
    return ""


def _refusal_of_call(call: ast.Call, arguments: set[str]) -> str:
    text = ast.unparse(call.func)
    name = text.rpartition(".")[2]
    base = _base(call.func)
    if base in _RANDOM and "." in text:
        return f"`{text}()` computes on the host, and a replay does not call it"
    if text in _READERS or ("." in text and name in READS):
        return f"`{text}()` reads a value on the host in the middle of the step"
    holder = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_in_place = name.endswith("_") and not name.endswith("__") and name != "unscale_"
    if is_in_place and isinstance(holder, ast.Name) and holder.id in arguments:
        return f"`{text}()` changes the argument `{holder.id}`, of which the graph has a copy"
    return ""


def _dictionary(node: ast.AST) -> str:
    """The variable `x` of `x["key"]` and of `f(**x)`; "" for anything else."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return _base(node) if isinstance(node.slice.value, str) else ""
    return _base(node.value) if isinstance(node, ast.keyword) and node.arg is None else ""


def _iterated(loop: ast.comprehension) -> str:
    """The variable `x` of `for y in x` and of `for k, v in x.items()`; "" for anything else."""
    return _base(loop.iter.func if isinstance(loop.iter, ast.Call) else loop.iter)


def _is_test_of_none(node: ast.AST, stored: set[str]) -> bool:
    """`if scaler is not None`: what does not change while the step gets the same objects."""
    test = node.test if isinstance(node, (ast.If, ast.IfExp)) else None
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id not in stored
        and isinstance(test.ops[0], (ast.Is, ast.IsNot))
        and isinstance(test.comparators[0], ast.Constant)
        and len(test.ops) == 1
    )


def _base(node: ast.AST) -> str:
    """The variable that an expression begins with, as `self` of `self.model.weight`; "" where it is none."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


_WRAPPER = Wrapper(_CLASS, "import torch", code=_CODE, check=_check)
