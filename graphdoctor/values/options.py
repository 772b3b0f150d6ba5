"""What a person may choose about an analysis, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graphdoctor.values.report import Mode

DeviceChoice = Literal["auto", "cuda", "emulated"]
InputsChoice = Literal["vary", "fixed"]
ValuesChoice = Literal["auto", "real", "none"]


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """The choices of one analysis.

    `mode` None lets the target decide. `inputs` are tensor specifications such as
    "8x3x224x224:float16". `gpu` names the device profile of a prediction, and `host` what
    feeds it: a class, a file of `graphdoctor calibrate --host`, or "" for the profile's own. `trace_dir` is a
    folder for profiler traces, or None for no traces. `strategies` names the ways to run the step
    faster that are compared, within `budget_s` seconds; None takes those that fit the device.
    `values` "none" runs the step on shapes only, "real" never does; "auto" decides by the weights.
    With `fixed_inputs` every iteration gets the inputs as given, and none other values. With
    `times_stages` the report has the wall time of each stage, which differs from run to run.
    """

    mode: Mode | None = None
    device: DeviceChoice = "auto"
    iterations: int = 4
    inputs: tuple[str, ...] = ()
    gpu: str = "h100"
    host: str = ""
    trace_dir: str | None = None
    strategies: tuple[str, ...] | None = None
    budget_s: float = 120.0
    fixed_inputs: bool = False
    times_stages: bool = False
    values: ValuesChoice = "auto"


@dataclass(frozen=True, slots=True)
class Bounds:
    """`after` so many steps of a kind, `steps` of them are kept; then the program ends, or goes on.

    `only` names the one function or method whose calls are the steps, "" for those that are found.
    """

    after: int = 3
    steps: int = 4
    ends: bool = False
    only: str = ""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The choices of one run of a program.

    `is_left_on_cpu`: no device is emulated while the program runs, only for each diagnosis.
    `time_limit_s`: how long several ranks may diagnose one step, since one of them may hang.
    """

    analyze: AnalyzeOptions
    bounds: Bounds
    is_left_on_cpu: bool = False
    time_limit_s: float = 600.0
