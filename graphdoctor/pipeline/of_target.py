"""Reports on a target, in memory or in a file, with values or on shapes only."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import msgspec

from graphdoctor.device.emulated import EmulatedDevice, EmulationLimit
from graphdoctor.device.observe.meeting import RanksDiffer
from graphdoctor.device.processes.thrift import collecting_rarely
from graphdoctor.diagnose.assemble import could_not_run, raises_in_capture, ranks_differ
from graphdoctor.pipeline.setting import (
    Progress,
    Setting,
    Show,
    open_setting,
    put_back,
    silent,
    unseen,
)
from graphdoctor.pipeline.stages import report_of, study
from graphdoctor.record.place import place, place_again
from graphdoctor.record.session import has_template, on_meta
from graphdoctor.record.without_values import NO_VALUES, lacks_memory, without_values
from graphdoctor.reporters import for_python
from graphdoctor.strategies.choice import check_names
from graphdoctor.target import Target, from_object, named_tensors, resolve
from graphdoctor.values.errors import RaisesInCapture, UsageError, UserCodeError
from graphdoctor.values.escape import with_texts
from graphdoctor.values.options import AnalyzeOptions, DeviceChoice, ValuesChoice
from graphdoctor.values.report import Mode, Report


def with_cells_named(report: Report) -> Report:
    """The report with cells named as in the notebook that runs; outside of one as it is."""
    if "IPython" not in sys.modules:
        return report
    written = msgspec.to_builtins(report)
    naming = CellNames(set(_files(written)))
    return msgspec.convert(with_texts(written, naming.text), Report) if naming.names else report


class CellNames:
    """Those of these files that are cells, with or without their folder, and what they are called."""

    def __init__(self, files: Iterable[str]) -> None:
        self.names = {file: name for file in files if (name := _cell(file))}
        self.names |= {os.path.basename(file): name for file, name in self.names.items()}
        longest_first = sorted(self.names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def text(self, text: str) -> str:
        return self._pattern.sub(lambda found: self.names[found.group()], text)


def _cell(file: str) -> str:
    """ "In[3]"; "" of a file that is no cell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    _, name = (shell.compile.format_code_name(file) if shell is not None else None) or ("", "")
    return str(name)


def _files(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("file"), str):
            yield value["file"]
        for item in value.values():
            yield from _files(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _files(item)


NO_WARM_UP = (
    "the step is recorded from its first call on, since it raises in a later one before it is warm: what"
    " only a first call does is among what is found"
)


def analyze(
    subject: object,
    *inputs: object,
    mode: Mode | None = None,
    device: DeviceChoice = "auto",
    iterations: int = 4,
    gpu: str = "h100",
    host: str = "",
    strategies: Sequence[str] | None = None,
    budget_s: float = 120.0,
    vary_inputs: bool = True,
    values: ValuesChoice = "auto",
    **kwargs: object,
) -> for_python.Report:
    """Diagnose a module on its inputs, or what a function returns as `graphdoctor_target()` would.

    Predictions are for `gpu`, fed by `host`: names or files, as --gpu and --host take them.
    `strategies` are compared within `budget_s` seconds: () for none, None for those that fit; on a
    real GPU in this process, since no other could find the target again.
    Without `vary_inputs` every iteration gets the inputs as given; else other values of the same make,
    where the step accepts them. `values` "none" runs the step on shapes only, which takes neither
    memory nor time to compute, and proves less; "auto" does so for weights on the meta device, and where
    the memory would not suffice. Everything that the analysis touches is afterwards as it was before. Raises
    `graphdoctor.values.errors.UserCodeError` where the step itself fails.
    """
    options = AnalyzeOptions(
        mode=mode,
        device=device,
        iterations=iterations,
        gpu=gpu,
        host=host,
        strategies=tuple(strategies) if strategies is not None else None,
        budget_s=budget_s,
        fixed_inputs=not vary_inputs,
        values=values,
    )
    report = _analyze(
        lambda: from_object(subject, *inputs, mode=mode, **kwargs), None, options, silent
    )
    return for_python.Report.of(with_cells_named(report))


def analyze_target(
    spec: str, options: AnalyzeOptions, progress: Progress, show: Show = unseen
) -> Report:
    """Diagnose what `file.py`, `file.py:name` or `package.module:name` describes.

    `show` gets the report so far before each strategy that is tried.
    """

    def find() -> Target:
        with collecting_rarely():
            return resolve(spec, mode=options.mode, inputs=options.inputs)

    return _analyze(find, spec, options, progress, show)


def _analyze(
    find: Callable[[], Target],
    spec: str | None,
    options: AnalyzeOptions,
    progress: Progress,
    show: Show = unseen,
) -> Report:
    """`spec` finds the target again in another process; None: nothing does."""
    check_names(options.strategies)
    options = _of_device_that_can(options)
    with open_setting(options, progress, show) as setting:
        setting.begin("finding the model")
        target = find()
        why = _why_without_values(target, setting)
        if not why or setting.device.kind == "emulated":
            try:
                return _analyze_found(target, why, spec, setting)
            except UserCodeError:  # it needs values of what has none
                if why or not has_template(named_tensors(target.roots)):
                    raise
        target.close()
    return _analyze(find, spec, replace(options, device="auto", values="none"), progress, show)


def _of_device_that_can(options: AnalyzeOptions) -> AnalyzeOptions:
    """Without values no GPU is of use: the emulated device runs the step."""
    if options.values != "none":
        return options
    if options.device == "cuda":
        raise UsageError(
            "A step on shapes only (values none) runs nothing on a GPU: leave --device cuda out, or"
            " --values none."
        )
    return replace(options, device="emulated")


def _analyze_found(target: Target, why: str, spec: str | None, setting: Setting) -> Report:
    """`why` the step is to run without values; "" runs it with them."""
    device = setting.device
    left_out: AbstractContextManager[Target] = nullcontext(target)
    if why:  # nothing can be verified or profiled
        options = replace(setting.options, strategies=(), trace_dir=None)
        setting = replace(setting, options=options)
        if isinstance(device, EmulatedDevice):
            notes = (*target.notes, f"{NO_VALUES}: {why}")
            left_out = without_values(replace(target, notes=notes), device)
    try:
        with (
            left_out as given,
            put_back(given, device.table) as before,
        ):
            placed = place(given, device)
            try:
                return report_of(study(placed, setting), spec, setting)
            except RanksDiffer as found:
                return ranks_differ(placed, device, found)
            except EmulationLimit as limit:
                return could_not_run(placed, device, str(limit))
            except RaisesInCapture as error:
                return raises_in_capture(placed, device, error)
            except UserCodeError as error:
                if given.is_warm or device.meeting.has_others:
                    raise
                before.restore()
                place_again(placed, device)
                # A step that a warm-up does not survive is studied in its first calls, if these run.
                early = replace(placed, is_warm=True, notes=(*placed.notes, NO_WARM_UP))
                try:
                    return report_of(study(early, setting), spec, setting)
                except UserCodeError:
                    raise error from error.__cause__
    except EmulationLimit as limit:
        target.close()
        return could_not_run(target, device, str(limit))


def _why_without_values(target: Target, setting: Setting) -> str:
    """Why the step has to run on shapes only, as a clause; "" where it can run with values."""
    wanted = setting.options.values
    if wanted == "real":
        return ""
    named = named_tensors(target.roots)
    if (empty := on_meta(named)) and (wanted == "none" or not has_template(named)):
        return f"{empty}, which holds no values"
    if wanted == "none":
        return "as requested"
    return lacks_memory(target, named) if setting.device.kind == "emulated" else ""
