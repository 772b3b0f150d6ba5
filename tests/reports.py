"""Hand-built reports for tests of what shows them; run as a module it writes tests/golden/ anew."""

from __future__ import annotations

from pathlib import Path

from graphdoctor.model import (
    SCHEMA_VERSION,
    CaptureOutcome,
    Difference,
    Estimate,
    Excerpt,
    Finding,
    Location,
    Machine,
    Measurement,
    Range,
    Region,
    Report,
    TargetInfo,
    Term,
    Verification,
)

GOLDEN = Path(__file__).parent / "golden"
FILE = "/work/project/models/branch.py"
BASE = "/work/project"


def at(line: int, file: str = FILE) -> Location:
    return Location(file, line, "Branch.forward")


HOST_READ = Finding(
    rule="GD101",
    name="host-read",
    effect="capture-fails",
    message="`tmp.sum().item()` makes the host wait until the GPU has computed one value.",
    why="While a graph is recorded the host must never wait for the device.\n\n"
    "A replay runs without the host, so nothing could decide again.",
    fix="Keep the decision on the device:\n\n"
    "    out = torch.where(tmp.sum() > 0, second(tmp), third(tmp))\n\n"
    "or capture the parts before and after it.",
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
    machine=Machine("emulated", "", "3.11.7", "2.13.0", "Linux x86_64"),
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
    trace_files=("/work/project/traces/branch.pt.trace.json",),
)
SAFE = Report(
    schema_version=SCHEMA_VERSION,
    tool_version="0.1.0",
    target=TargetInfo("mlp.py", "/work/project/mlp.py", "graphdoctor_target()", "inference"),
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

GOLDEN_REPORTS = {"partly_safe": PARTLY_SAFE, "safe": SAFE}


if __name__ == "__main__":
    from graphdoctor.reporters import REPORTERS, Look

    GOLDEN.mkdir(exist_ok=True)
    for name, report in GOLDEN_REPORTS.items():
        page = REPORTERS["terminal"](report, Look(base=BASE))
        (GOLDEN / f"{name}.txt").write_text(page, encoding="utf-8")
