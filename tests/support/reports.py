"""Hand-built reports for tests of what shows them; run as a module it writes tests/golden/ anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from graphdoctor.values.captures import CaptureOutcome, Difference, Need, Region, Verification
from graphdoctor.values.figures import Range
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Excerpt, Location
from graphdoctor.values.program import (
    PROGRAM_SCHEMA_VERSION,
    HostWait,
    Patch,
    ProgramReport,
    ProgramStep,
)
from graphdoctor.values.report import SCHEMA_VERSION, Machine, Report, TargetInfo
from graphdoctor.values.speed import (
    Estimate,
    Measurement,
    NextFix,
    Recommendation,
    StrategyOutcome,
    Term,
)

GOLDEN = Path(__file__).parents[1] / "golden"
FILE = "/repo/project/models/branch.py"
BASE = "/repo/project"


def at(line: int, file: str = FILE) -> Location:
    return Location(file, line, "Branch.forward")


HOST_READ = Finding(
    rule="GD101",
    name="host-read",
    effect="capture-fails",
    message="`tmp.sum().item()` makes the host wait until the GPU has computed one value.",
    why="While a graph is recorded the host must never wait for the device.\n\n"
    "A replay runs without the host, so nothing could decide again.",
    fix="Keep the decision on the device. Or capture the parts before and after it. The line becomes:",
    fix_code=("out = torch.where(tmp.sum() > 0, second(tmp), third(tmp))",),
    location=at(31),
    excerpt=Excerpt(
        29,
        (
            "    def forward(self, x):",
            "\ttmp = self.first(x)",
            "        if tmp.sum().item() > 0:",
            "            return self.second(tmp)",
        ),
    ),
    stack=(at(60),),
    count=2,
    operator="aten._local_scalar_dense.default",
    certainty="confirmed",
)
FROZEN_RATE = Finding(
    rule="GD204",
    name="frozen-learning-rate",
    effect="replay-is-wrong",
    message="The learning rate 0.1 becomes part of the graph, but step 2 used 0.09.",
    why="Numbers are stored in a graph as they were when it was captured.",
    fix="Give the optimizer its rate as a tensor: SGD(params, lr=torch.tensor(0.1)).",
    location=at(58),
    module="head",
    phase="optimizer",
)

REGION = Region(
    name="A",
    operators=12,
    launches=14,
    phases=("forward",),
    modules=("first", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "norm"),
    first=at(28),
    last=at(30),
    blocked_by=("GD101",),
    iterations=(0, 1, 2, 3),
    worthwhile=True,
    reason="14 launches become one",
    saving_us=Range(40, 50, 60),
)
SMALL_REGION = Region(
    name="B",
    operators=1,
    launches=1,
    phases=("backward",),
    modules=("second",),
    first=at(32),
    last=at(33),
    blocked_by=("GD101", "GD204"),
    iterations=(0, 2),
    worthwhile=False,
    reason="a graph launch costs as much as the launch it replaces",
    needs=(Need("A", ("GD101",)),),
)
REFUSED = CaptureOutcome("whole step", "refused", "the host reads a value", at(31))
VERIFIED = CaptureOutcome(
    "region A", "captured", operators=12, verification=Verification("verified", 3, 14, "bitwise")
)
WRONG = CaptureOutcome(
    "whole step",
    "captured",
    operators=44,
    verification=Verification(
        "wrong",
        3,
        14,
        "bitwise",
        differences=(Difference("model.head.weight", 2, 4.1e-3, 0.02, "aten.add_.Tensor", at(58)),),
    ),
)
ESTIMATE = Estimate(
    gpu="NVIDIA H100 SXM",
    basis="predicted",
    launches=27,
    host_us=Range(150, 180, 260),
    device_busy_us=Range(40, 50, 60),
    eager_us=Range(150, 180, 260),
    graph_us=Range(45, 55, 70),
    launch_bound_share=Range(0.5, 0.62, 0.7),
    speedup=Range(1.8, 2.4, 3.2),
    terms=(Term("one launch", "2.3 to 3.1 us", "a published benchmark"),),
    notes=("The cost of Python between operators is a typical figure.",),
)
MEASUREMENT = Measurement(
    eager_us=1320.0,
    graph_us=930.0,
    speedup=1.42,
    speedup_low=1.38,
    speedup_high=1.46,
    confidence=0.95,
    blocks=30,
    calls_per_block=20,
    word="faster",
    gpu="NVIDIA H200",
    clock_note="Clocks did not change between the blocks.",
)

PARTLY_SAFE = Report(
    schema_version=SCHEMA_VERSION,
    tool_version="0.1.0",
    target=TargetInfo(
        name="branch.py",
        file=FILE,
        entry="get_model() + get_inputs()",
        mode="training",
        notes=("The file has no train_step: the loss is the sum of all floating outputs.",),
    ),
    machine=Machine("emulated", "emulated CUDA device", "3.11.7", "2.13.0", "Linux x86_64"),
    verdict="partly-safe",
    reason="Line 31 reads a GPU value on the host, so the whole step cannot be captured;"
    " three modules can.",
    findings=(FROZEN_RATE, HOST_READ),
    regions=(REGION, SMALL_REGION),
    safe_modules=("first", "second", "third"),
    captures=(REFUSED, VERIFIED),
    estimate=ESTIMATE,
    measurement=None,
    operators=44,
    iterations=4,
    limits=("The kernel `fused_gate` cannot run on a CPU, so its values were not compared.",),
    trace_files=("/repo/project/traces/branch.pt.trace.json",),
)
SAFE = Report(
    schema_version=SCHEMA_VERSION,
    tool_version="0.1.0",
    target=TargetInfo("mlp.py", "/repo/project/mlp.py", "graphdoctor_target()", "inference"),
    machine=Machine("cuda", "NVIDIA H200", "3.12.1", "2.13.0", "Linux x86_64"),
    verdict="safe",
    reason="Nothing in the step stops a capture, and its replay computes what eager computes.",
    findings=(),
    regions=(),
    safe_modules=(),
    captures=(CaptureOutcome("whole step", "captured", verification=VERIFIED.verification),),
    estimate=None,
    measurement=MEASUREMENT,
    operators=9,
    iterations=4,
)


def strategy(name: str, status: Any = "verified", **fields: Any) -> StrategyOutcome:
    """A row; its title, and that it is ours, unless `fields` say otherwise."""
    return StrategyOutcome(
        **{"strategy": name, "title": f"the way of {name}", "is_ours": True, "status": status}
        | fields
    )


def timed(speedup: float, low: float, high: float) -> Measurement:
    word: Any = "faster" if low > 1 else "slower" if high < 1 else "no change"
    return replace(
        MEASUREMENT,
        graph_us=MEASUREMENT.eager_us / speedup,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        word=word,
        clock_note="",
    )


STRATEGIES_ON_GPU = (
    strategy(
        "whole",
        reason="all 14 tensors equal eager's within its own deviation",
        predicted=Range(1.6, 2.1, 2.9),
        measurement=timed(2.31, 2.25, 2.36),
        captured_share=1.0,
        launches_eager=412.0,
        launches=2.0,
        busy_share_eager=0.31,
        busy_share=0.92,
        prepare_s=0.412,
        extra_bytes=34_100_000,
        peak_bytes=912_000_000,
        break_even_calls=551,
        code="graph.replay()\n",
    ),
    strategy("split-step", "unfit", reason="it takes training steps only"),
    strategy(
        "modules",
        "wrong",
        reason="model.head.weight differs from eager's in replay 2 by up to 0.0041",
        location=None,
    ),
    strategy(
        "segments",
        "failed",
        reason="memory ran out: a graph keeps the memory of its step",
        location=at(31),
    ),
    strategy(
        "reduce-overhead",
        is_ours=False,
        reason="the outputs differ from eager's by at most 3e-06 of their magnitude",
        measurement=timed(1.01, 0.98, 1.03),
        captured_share=0.98,
        prepare_s=31.2,
        extra_bytes=1_240_000_000,
        peak_bytes=2_100_000_000,
        deviation=3e-6,
    ),
    strategy(
        "cudagraphs",
        is_ours=False,
        measurement=timed(0.8, 0.78, 0.83),
        captured_share=0.9,
        prepare_s=4.2,
        extra_bytes=-12_000,
    ),
    strategy("max-autotune", "timed-out", is_ours=False, reason="it did not end within 40 s"),
)
COMPARED_ON_GPU = replace(
    SAFE,
    strategies=STRATEGIES_ON_GPU,
    recommendation=Recommendation(
        "whole",
        "whole: the way of whole; its answers were verified, and it was measured at 2.31x (2.25 to"
        " 2.36).",
        "graph.replay()\n",
    ),
)
COMPARED = replace(
    PARTLY_SAFE,
    strategies=(
        strategy(
            "whole",
            "refused",
            reason="GD101 host-read in line 31 of branch.py makes the capture fail",
            location=at(31),
        ),
        strategy(
            "modules",
            reason="all 13 tensors equal eager's bit for bit",
            predicted=Range(1.13, 1.69, 2.2),
            captured_share=0.71,
        ),
        strategy(
            "segments",
            "planned",
            reason="planned only: trying it takes a real GPU",
            predicted=Range(1.4, 2.3, 3.1),
            captured_share=0.9,
        ),
    ),
    recommendation=Recommendation(
        "modules",
        "modules: the way of modules; its answers were verified, and the prediction is 1.69x (1.13"
        " to 2.20).",
        "model.first = torch.cuda.make_graphed_callables(model.first, (example,))\n",
        "GD101 host-read in line 31 of branch.py is all that keeps the step from being one graph:"
        " without it, 2.40x (1.80 to 3.20) is predicted.",
        NextFix("GD101", at(31), Range(1.8, 2.4, 3.2), 1.0),
    ),
)


def step_of(report: Report | None) -> ProgramStep:
    """A training step of a program, seen twelve times."""
    return ProgramStep(
        name="train.py:31-34", location=at(31), last_line=34, mode="training", begun=12, wall_s=2.0,
        share=0.5, report=report, recorded=4, slowdown=2.5,
    )  # fmt: skip


def of_program(*steps: ProgramStep) -> ProgramReport:
    """A program that ran to its end with these steps."""
    return ProgramReport(
        schema_version=PROGRAM_SCHEMA_VERSION, tool_version="0.1.0", command=("train.py", "--epochs", "1"),
        machine=None, ending="finished", exit_code=0, wall_s=4.0, diagnosis_s=1.0, steps=steps,
        loading_s=1.0,
    )  # fmt: skip


UNKNOWN = replace(
    SAFE,
    machine=PARTLY_SAFE.machine,
    verdict="unknown",
    reason="No hazard was found, but the result is not verified: `fused_gate` (mlp.py:12) cannot run"
    " on a CPU.",
    captures=(),
    measurement=None,
    estimate=ESTIMATE,
)
PROGRAM = replace(
    of_program(
        replace(
            step_of(COMPARED),
            between=(
                HostWait(at(9), "reads a value", 1.0),
                HostWait(at(12), "reads a value", 0.25),
            ),
        ),
        replace(step_of(COMPARED), name="train.py:41-44", begun=3),
        replace(
            step_of(SAFE),
            name="Linear at train.py:50",
            mode="inference",
            change="replay `model` as a CUDA graph, 1.42x",
        ),
        replace(step_of(UNKNOWN), name="train.py:61"),
        replace(
            step_of(None), name="train.py:70", reason="It was seen twice only.", is_reached=False
        ),
    ),
    patch=Patch(
        "same results",
        "--- a/train.py\n+++ b/train.py\n@@ -7,2 +7,3 @@\n from torch import nn\n+import graphdoctor\n \n"
        "@@ -15,3 +16,3 @@\n model = make()\n-model = model.eval()\n+model = graphdoctor.capture(model.eval())\n \n",
        BASE,
        "output (8 lines) and 4 weight tensors identical, 24 calls replayed",
    ),
)
GOLDEN_REPORTS = {
    "partly_safe": PARTLY_SAFE,
    "safe": SAFE,
    "unknown": UNKNOWN,
    "compared": COMPARED,
    "compared_on_gpu": COMPARED_ON_GPU,
}


if __name__ == "__main__":
    from graphdoctor.reporters import program_page
    from graphdoctor.reporters.formats import written_as
    from graphdoctor.reporters.look import Look

    GOLDEN.mkdir(exist_ok=True)
    page = program_page.render(PROGRAM, Look(base=BASE), diff_file="fix.diff")
    (GOLDEN / "program.txt").write_text(page, encoding="utf-8")
    for name, report in GOLDEN_REPORTS.items():
        for suffix, show_all in (("", False), ("_all", True)):
            page = written_as("terminal", report, Look(base=BASE, show_all=show_all))
            (GOLDEN / f"{name}{suffix}.txt").write_text(page, encoding="utf-8")
