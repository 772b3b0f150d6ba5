"""What the fixture `graphdoctor` gives a test: it checks models, or those that run in a block."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from graphdoctor.check.baseline import Baseline
from graphdoctor.check.gate import Outcome, accepted_of, entries_of, gate
from graphdoctor.check.relative_paths import RelativePaths
from graphdoctor.check.run_targets import fault_of
from graphdoctor.check.settings.settings import Settings, TargetSettings
from graphdoctor.pytest_plugin.limits import limits_of
from graphdoctor.pytest_plugin.session import CheckedTest, Session
from graphdoctor.reporters.check import wording
from graphdoctor.reporters.for_python import Report
from graphdoctor.values import report as plain
from graphdoctor.values.check import Check, CheckedTarget, Fault, Occurrence, fails, occurrences
from graphdoctor.values.errors import GraphDoctorError, UsageError
from graphdoctor.values.escape import visible
from graphdoctor.values.finding import effect_text

if TYPE_CHECKING:
    from graphdoctor.check.settings.files import Project
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from graphdoctor.target.frames import is_machinery
from graphdoctor.values.figures import joined
from graphdoctor.values.locations import Location, file_line

_READS = frozenset({"item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__"})


@dataclass(frozen=True, slots=True)
class Call:
    """`args` and `kwargs` are copies: the module may write into its inputs."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class Seen:
    """Modules with their first calls; and, outside of modules, what trained and what was read."""

    calls: list[Call] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    depth: int = 0  # of calls of modules that are under way

    def note(self, kept: list[str], text: str) -> None:
        if self.depth == 0 and text not in kept:
            kept.append(text)


@contextmanager
def watching(module: torch.nn.Module | None) -> Iterator[Seen]:
    """What was seen so far. torch's own global hooks are not told keywords, so calls are intercepted."""
    seen = Seen()
    original = torch.nn.Module.__call__
    backward = torch.autograd.backward

    def call(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        is_meant = self is module if module is not None else seen.depth == 0
        if is_meant and all(self is not known.module for known in seen.calls):
            seen.calls.append(Call(self, _copied(args), _copied(kwargs)))
        seen.depth += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            seen.depth -= 1

    def went_back(*args: Any, **kwargs: Any) -> Any:
        seen.note(seen.trained, f"the backward pass{_where()}")
        return backward(*args, **kwargs)

    torch.nn.Module.__call__ = call  # type: ignore[method-assign]
    torch.autograd.backward = went_back
    hook = register_optimizer_step_pre_hook(
        lambda optimizer, args, kwargs: seen.note(seen.trained, _stepped(optimizer))
    )
    try:
        with _Reads(seen):
            yield seen
    finally:
        hook.remove()
        torch.autograd.backward = backward
        torch.nn.Module.__call__ = original  # type: ignore[method-assign]


class _Reads(TorchFunctionMode):
    """Notes each call that gives the host a tensor's values."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READS and not is_machinery(sys._getframe(1).f_code.co_filename):
            self._seen.note(self._seen.reads, f".{name}(){_where()}")
        return func(*args, **(kwargs or {}))


def not_seen(seen: Seen) -> str:
    """What of a training step was checked and what was not, and how to check all of it."""
    checked = ", ".join(dict.fromkeys(type(call.module).__name__ for call in seen.calls))
    return visible(
        f"the block trains, and watch() checks only the forward of {checked}: it did not check"
        f" {joined([*seen.trained, *seen.reads])}; call graphdoctor.check(step, *inputs) with the"
        " whole step as a function, or watch(module) to mean the forward alone"
    )


def _stepped(optimizer: torch.optim.Optimizer) -> str:
    """A step is refused by capture where the optimizer has the flag and it is not set."""
    is_refused = any(group.get("capturable", True) is False for group in optimizer.param_groups)
    note = " (constructed without capturable=True)" if is_refused else ""
    return f"{type(optimizer).__name__}.step(){note}{_where()}"


def _where() -> str:
    """ " in test_net.py:12", of the nearest frame that is no library's."""
    frame = sys._getframe(1)
    while frame is not None:
        if not is_machinery(frame.f_code.co_filename):
            return f" in {file_line(Location(frame.f_code.co_filename, frame.f_lineno))}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _copied(inputs: Any) -> Any:
    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return tree_map(copy, inputs)


SEED = 0
_SHOWN = 5


class Checker:
    """One test's access to graphdoctor. `reports` has one entry for each check, in order."""

    def __init__(self, node: pytest.Item, session: Session) -> None:
        self._node = node
        self._session = session
        self._limits = limits_of(node)
        self.reports: list[Report] = []

    @property
    def report(self) -> Report:
        """What the last check found."""
        if not self.reports:
            raise AttributeError("there is no report yet: call graphdoctor.check() first")
        return self.reports[-1]

    def check(self, model: object, *inputs: object, **kwargs: object) -> Report:
        """Fail the test unless the step is safe within the limits of its marker.

        `model` and its inputs are what `graphdoctor.analyze` takes; keywords go to the model. Where the
        marker says `ranks`, it is a target that other processes can find: a text such as
        "models/net.py:make", or a function of a file.
        """
        __tracebackhide__ = True
        report = self._analyzed(model, *inputs, **kwargs)
        self.reports.append(report)
        outcome = Outcome(self._target(), report)
        project = self._project()
        baseline = self._session.baseline
        check = gate([outcome], baseline, project, is_complete=False)
        self._tell_junit(check.targets[0])
        accepted = accepted_of(outcome)
        entries = tuple(entries_of(outcome, project))
        if self._session.is_updating:
            check = gate([outcome], _accepting(outcome, project), project, is_complete=False)
        self._session.add(CheckedTest(check, entries, accepted))
        if check.exit_code != 0:
            raise AssertionError(failure_text(check))
        return report

    @contextmanager
    def watch(self, module: torch.nn.Module | None = None) -> Iterator[None]:
        """Check what is called inside the block: `module`, or every module that the block calls.

        Each is checked once, after the block, on the inputs of its first call. What the block does
        outside of modules is not seen, so a training step fails here unless its module is named.
        """
        __tracebackhide__ = True
        with watching(module) as seen:
            yield
        if not seen.calls:
            name = "no module" if module is None else f"the watched {type(module).__name__}"
            raise AssertionError(f"nothing to check: {name} was called in the block")
        for call in seen.calls:
            self.check(call.module, *call.args, **call.kwargs)
        if module is None and seen.trained:
            raise AssertionError(not_seen(seen))

    @property
    def settings(self) -> Settings:
        """Those of the project, with pytest's options on top."""
        return self._session.project.settings

    def missing(self) -> str:
        """A sentence about what the marker expects and no check of this test found; "" if nothing."""
        found = [one for report in self.reports for one in report.findings]
        gone = [
            selector
            for selector in self._limits.expect
            if not any(one.rule.startswith(selector) or one.name == selector for one in found)
        ]
        if not gone:
            return ""
        return (
            f"{', '.join(gone)} is expected and was not found: drop it from expect= of the marker"
        )

    def _analyzed(self, model: object, *inputs: object, **kwargs: Any) -> Report:
        __tracebackhide__ = True
        try:
            analyzed = self._of_ranks if self._limits.ranks > 1 else self._of_one
            report = analyzed(model, *inputs, **kwargs)
        except GraphDoctorError as error:
            fault = fault_of(error)
            self._tell_fault(fault)
            pytest.fail(f"graphdoctor: {fault.message}\n{fault.details}".rstrip(), pytrace=False)
        return Report.of(RelativePaths(self._project().root).report(report))

    def _of_one(self, model: object, *inputs: object, **kwargs: Any) -> plain.Report:
        from graphdoctor.pipeline import analyze

        settings = self._project().settings
        with seeded():
            return analyze(
                model,
                *inputs,
                mode=self._limits.mode,
                device=settings.device,
                iterations=settings.iterations,
                gpu=settings.gpu,
                host=settings.host,
                strategies=(),
                values=settings.values,
                **kwargs,
            )

    def _of_ranks(self, model: object, *inputs: object, **kwargs: object) -> plain.Report:
        from graphdoctor.check.on_ranks import report_of_ranks
        from graphdoctor.check.run_targets import job_of

        if inputs or kwargs:
            raise UsageError(
                "check() of several ranks takes no inputs: let the target return its step with them"
            )
        project, limits = self._project(), self._limits
        target = replace(self._target(), entry=spec_of(model), mode=limits.mode, ranks=limits.ranks)
        return report_of_ranks(job_of(target, project), time_limit_s=project.settings.time_limit)

    def _tell_fault(self, fault: Fault) -> None:
        """A test without a report must not be missing from what all tests found."""
        outcome = Outcome(self._target(), fault)
        check = gate([outcome], self._session.baseline, self._project(), is_complete=False)
        self._session.add(CheckedTest(check, (), None))

    def _project(self) -> Project:
        """The project's settings, with what this test allows on top."""
        project = self._session.project
        ignore = (*project.settings.ignore, *self._limits.allow, *self._limits.expect)
        return replace(project, settings=replace(project.settings, ignore=ignore))

    def _target(self) -> TargetSettings:
        """Named after the test; further checks of one test are numbered."""
        count = len(self.reports)
        name = self._node.nodeid + (f"#{count}" if count > 1 else "")
        file = RelativePaths(self._session.project.root).text(str(self._node.path))
        return TargetSettings(name, entry=file, budgets=self._limits.budgets)

    def _tell_junit(self, target: CheckedTarget) -> None:
        """As properties of the test case, in the file that --junitxml writes."""
        tell = self._node.user_properties.append
        if target.report is not None:
            tell(("graphdoctor_verdict", target.report.verdict))
        if target.figures is not None:
            tell(("graphdoctor_figures", wording.figures_text(target.figures)))
        for one in target.findings:
            state = "new" if one.is_new else "known"
            where = wording.place(one.path, one.line)
            tell(("graphdoctor_finding", f"{wording.title(one.finding)} {where} {state}"))


def _accepting(outcome: Outcome, project: Project) -> Baseline:
    """A baseline of just this outcome, against which only the test's own budgets can fail."""
    from graphdoctor.check.baseline import make

    accepted = accepted_of(outcome)
    return make(entries_of(outcome, project), [accepted] if accepted is not None else [])


def spec_of(model: object) -> str:
    """What finds a target in another process. Raises UsageError for what only this one has."""
    if isinstance(model, str):
        return model
    code = getattr(model, "__code__", None)
    name = getattr(model, "__qualname__", "")
    if code is None or not name.isidentifier():
        raise UsageError(
            "check() of several ranks needs what other processes find: a text such as 'models/net.py:make', or a"
            f" function at the top of a file; it was given {type(model).__name__}"
        )
    return f"{code.co_filename}:{name}"


@contextmanager
def seeded() -> Iterator[None]:
    """Weights and inputs are drawn alike whatever ran before; the generators are put back."""
    import numpy as np

    from graphdoctor.target import snapshot

    before = snapshot({})
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    try:
        yield
    finally:
        before.restore()


@contextmanager
def on_the_device(checker: Checker) -> Iterator[None]:
    """Code that says "cuda" runs on the emulated device, where models are to be checked on that."""
    from graphdoctor.device.open import open_device
    from graphdoctor.estimate.hosts import profile_for

    settings = checker.settings
    if settings.device == "cuda" or (settings.device == "auto" and torch.cuda.is_available()):
        yield
        return
    with open_device("emulated", profile_for(settings.gpu, settings.host)):
        yield


def failure_text(check: Check) -> str:
    """Several lines; nothing in them is obeyed by a terminal."""
    return "\n".join(_lines(check))


def _lines(check: Check) -> Iterator[str]:
    new = [
        one for one in occurrences(check, is_new=True) if fails(one.checked.severity, check.fail_on)
    ]
    yield _headline(check, len(new))
    for one in new[:_SHOWN]:
        yield from _finding(one)
        worse = wording.came_with(check, one)
        if worse:
            yield f"With it: {worse}"
    if new[_SHOWN:]:
        yield f"and {len(new) - _SHOWN} more findings"
    for problem in wording.problems(check):
        yield f"{problem.title}: {visible(problem.message)}"
        yield from wording.details(problem)
    if check.stale:
        yield "entries of the baseline no longer occur (pytest --graphdoctor-update drops them):"
        for entry in check.stale:
            yield f"  {entry.rule} {visible(entry.path)}: {visible(entry.source)}"


def _headline(check: Check, new: int) -> str:
    report = check.targets[0].report
    verdict = report.verdict if report is not None else "unknown"
    hazards = {0: "", 1: ", 1 hazard that is not allowed"}
    if not new and check.targets[0].breaches:
        hazards[0] = ", but over a limit or worse than its baseline"
    return f"the step is {verdict} as a CUDA graph" + hazards.get(
        new, f", {new} hazards that are not allowed"
    )


def _finding(one: Occurrence) -> Iterator[str]:
    finding = one.checked.finding
    yield ""
    yield f"{wording.title(finding)}: {effect_text(finding)}"
    note = wording.library_note(one.checked)
    yield f"{wording.place(one.checked.path, one.checked.line)}{f' ({note})' if note else ''}"
    yield from wording.code_lines(finding)
    yield f"What: {visible(finding.message)}"
    first, *code = wording.fix_lines(finding)
    yield f"Fix: {first}"
    yield from code
