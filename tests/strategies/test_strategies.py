"""Trying strategies: every way that one can go is a row, and the step is afterwards as it was."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from graphdoctor import strategies as strategies_package
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.estimate import Observed, estimate, fitted_speedup, launches
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.pipeline import analyze, analyze_target
from graphdoctor.record import prepare, record
from graphdoctor.strategies import choice, side_by_side, timing, trial
from graphdoctor.strategies.compilers.arithmetic import Digits, digits_of
from graphdoctor.strategies.eager_times import with_noise_told
from graphdoctor.strategies.foresee import foresee
from graphdoctor.strategies.modules import Modules
from graphdoctor.strategies.own_process import Job, in_own_process, own_processes
from graphdoctor.strategies.recommend import recommend, would_pay_more
from graphdoctor.strategies.strategy import Known, Strategy
from graphdoctor.strategies.timing import break_even_calls
from graphdoctor.strategies.trial import Terms, try_strategy
from graphdoctor.strategies.whole import Whole
from graphdoctor.target import Inputs, Target
from graphdoctor.target.state.snapshot import named_tensors
from graphdoctor.values.errors import UsageError
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.recording import Iteration
from graphdoctor.values.report import Finding, Measurement, Range, StrategyOutcome
from tests.support import fake_strategies as fakes
from tests.support.traces import TraceBuilder

PROFILE = load_profile("h100")
TERMS = Terms(PROFILE)
STEP_FILE = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))

def graphdoctor_target():
    return model.cuda().eval(), (torch.randn(4, 8, device="cuda"),)
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    torch.manual_seed(0)
    with EmulatedDevice() as emulated:
        yield emulated


def a_target() -> Target:
    model = torch.nn.Linear(8, 8).cuda()
    counted = SimpleNamespace(calls=0)

    def step(data: torch.Tensor) -> torch.Tensor:
        counted.calls += 1
        with torch.no_grad():
            model.bias.add_(0.5)
            return torch.relu(model(data))

    def data() -> Inputs:
        return Inputs((torch.randn(4, 8, device="cuda"),))

    roots = {"model": model, "counted": counted}
    return Target("step", __file__, "test", "inference", step, data, roots)


def a_session(device: EmulatedDevice) -> tuple[Any, Known]:
    target = a_target()
    session = prepare(target, device, iterations=3)
    recording = record(session, progress=lambda doing: None)
    return session, Known("inference", target.roots, (), ("",), recording.captured[-1])


def tried(device: EmulatedDevice, strategy: Strategy) -> StrategyOutcome:
    session, known = a_session(device)
    return try_strategy(strategy, session, known, terms=TERMS)


def test_what_is_right_is_verified_bit_for_bit_and_predicted_before_it_is_built(
    device: EmulatedDevice,
) -> None:
    session, known = a_session(device)
    row = try_strategy(fakes.Fake(), session, known, terms=TERMS)
    assert row.status == "verified"
    assert row.verification is not None
    assert row.verification.method == "bitwise"
    assert row.verification.replays == 3
    regions = fakes.Fake().regions(known)
    assert row.predicted == estimate(known.iteration, PROFILE, regions).speedup
    assert row.captured_share == 1.0
    assert row.launches_eager == sum(map(launches, known.iteration.ops))
    assert (row.measurement, row.prepare_s, row.extra_bytes) == (None, None, None)
    assert row.code == "fast = step\n"
    assert "stops advancing" not in row.reason


def test_a_graph_is_verified_from_the_state_of_its_capture_and_told_for_its_stopped_python(
    device: EmulatedDevice,
) -> None:
    row = tried(device, fakes.OneGraph())
    assert row.status == "verified"
    assert "host state stops advancing (counted.calls)" in row.reason


def test_what_is_wrong_is_called_wrong_and_gives_no_code(device: EmulatedDevice) -> None:
    row = tried(device, fakes.Wrong())
    assert (row.status, row.code) == ("wrong", "")
    assert row.verification is not None
    assert row.verification.differences[0].tensor == "output"
    assert row.reason.startswith("output differs from eager's in replay 1")


def test_what_rounds_differently_is_verified_with_its_deviation_told(
    device: EmulatedDevice,
) -> None:
    row = tried(device, fakes.Rounding())
    assert row.status == "verified"
    assert row.deviation == pytest.approx(3e-5, rel=0.1)
    assert "at most 3e-05 of their magnitude" in row.reason


def test_a_comparator_with_half_its_digits_off_is_wrong(device: EmulatedDevice) -> None:
    class FarOff(fakes.Rounding):
        def change(self, outputs: Any) -> Any:
            return outputs * 1.01

    row = tried(device, FarOff())
    assert row.status == "wrong"
    assert row.deviation == pytest.approx(0.01, rel=0.1)


def test_other_random_numbers_are_no_error_and_no_proof(device: EmulatedDevice) -> None:
    class Draws(fakes.Rounding):
        def change(self, outputs: Any) -> Any:
            return outputs * torch.rand((), device="cuda")

    session, known = a_session(device)
    random = msgspec.structs.replace(
        known.iteration.ops[0], tags=(*known.iteration.ops[0].tags, "nondeterministic_seeded")
    )
    iteration = msgspec.structs.replace(known.iteration, ops=(random, *known.iteration.ops[1:]))
    known = Known(known.mode, known.roots, (), (), iteration)
    row = try_strategy(Draws(), session, known, terms=TERMS)
    assert row.status == "not-verified"
    assert "draws random numbers" in row.reason


def test_attention_that_drops_nothing_is_no_excuse(device: EmulatedDevice) -> None:
    class FarOff(fakes.Rounding):
        def change(self, outputs: Any) -> Any:
            return outputs * 1.01

    session, known = a_session(device)
    attention = msgspec.structs.replace(
        known.iteration.ops[0],
        name="aten._scaled_dot_product_flash_attention.default",
        args=(),
        kwargs=(("dropout_p", 0.0),),
        tags=("nondeterministic_seeded",),
    )
    iteration = msgspec.structs.replace(known.iteration, ops=(attention, *known.iteration.ops[1:]))
    known = Known(known.mode, known.roots, (), (), iteration)
    assert try_strategy(FarOff(), session, known, terms=TERMS).status == "wrong"


@pytest.mark.parametrize(
    ("strategy", "status", "words"),
    [
        (fakes.Unfit(), "unfit", "it takes inference only"),
        (fakes.Refusing(), "refused", "the step has no optimizer"),
        (fakes.Synchronizing(), "refused", "the host waited for the device"),
        (fakes.Greedy(), "failed", "memory ran out"),
        (fakes.Broken(), "failed", "KeyError: 'module1'"),
        (fakes.BreaksInCall(), "failed", "ZeroDivisionError: division by zero"),
        (fakes.Compiling(), "planned", "it takes a real GPU to be tried"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_does_not_come_about_is_a_row_with_the_cause(
    device: EmulatedDevice, strategy: Strategy, status: str, words: str
) -> None:
    row = tried(device, strategy)
    assert row.status == status
    assert words in row.reason
    assert row.strategy == strategy.name


@pytest.mark.parametrize(
    "strategy",
    [
        fakes.Fake(),
        fakes.Wrong(),
        fakes.Spoiling(),
        fakes.Synchronizing(),
        fakes.BreaksInCall(),
        fakes.OneGraph(),
    ],
    ids=lambda value: value.name,
)
def test_state_is_afterwards_as_before_whatever_happens(
    device: EmulatedDevice, strategy: Strategy
) -> None:
    session, known = a_session(device)
    session.start.restore()
    before = {path: t.clone() for path, t in named_tensors(session.target.roots).items()}
    generator = torch.get_rng_state()
    calls = session.target.roots["counted"].calls
    stream = torch.cuda.current_stream()
    try_strategy(strategy, session, known, terms=TERMS)
    after = named_tensors(session.target.roots)
    assert after.keys() == before.keys()
    assert all(torch.equal(before[path], after[path]) for path in before)
    assert session.target.roots["counted"].calls == calls
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.cuda.current_stream() == stream


def test_what_was_built_is_given_back(device: EmulatedDevice) -> None:
    for strategy in (fakes.Fake(), fakes.Wrong(), fakes.BreaksInCall()):
        tried(device, strategy)
        assert strategy.built.is_released


def test_where_the_emulation_guessed_right_answers_are_no_proof(device: EmulatedDevice) -> None:
    session, known = a_session(device)
    guessed = msgspec.structs.replace(known.iteration.ops[0], fallback="the kernel was not run")
    iteration = msgspec.structs.replace(known.iteration, ops=(guessed, *known.iteration.ops[1:]))
    known = Known(known.mode, known.roots, (), (), iteration)
    row = try_strategy(fakes.Fake(), session, known, terms=TERMS)
    assert (row.status, row.reason, row.code) == ("not-verified", "the kernel was not run", "")


def test_one_graph_of_all_launches_is_predicted_as_the_whole_step(device: EmulatedDevice) -> None:
    class All(fakes.Fake):
        def regions(self, known: Known) -> Any:
            return [[op.index for op in known.iteration.ops]]

    _, known = a_session(device)
    row = foresee(All(), known, PROFILE)
    assert row.predicted == estimate(known.iteration, PROFILE).speedup


def test_where_the_eager_step_was_observed_the_prediction_goes_out_from_there(
    device: EmulatedDevice,
) -> None:
    _, known = a_session(device)
    regions = fakes.Fake().regions(known)
    seen = Observed(wall_us=5_000.0, busy_us=20.0)
    row = foresee(fakes.Fake(), known, PROFILE, observed=seen)
    assert row.predicted == fitted_speedup(known.iteration, PROFILE, regions, observed=seen)
    assert row.predicted != foresee(fakes.Fake(), known, PROFILE).predicted
    wall = Range(5_000.0, 5_000.0, 5_000.0)
    busy = Range(20.0, 20.0, 20.0)
    measured = msgspec.structs.replace(
        estimate(known.iteration, PROFILE), basis="measured", eager_us=wall, device_busy_us=busy
    )
    contest: Any = SimpleNamespace(known=known, profile=PROFILE)
    assert side_by_side._foreseen(contest, fakes.Fake(), measured) == foresee(
        fakes.Fake(), known, load_profile(measured.gpu), observed=seen
    )


class _CalledCuda:
    """The emulated device, believed to be a real one: so that what only a GPU is asked for runs."""

    kind = "cuda"

    def __init__(self, device: EmulatedDevice) -> None:
        self.table = device.table
        self.observed_by = device.observed_by
        self.assuming_capture = device.assuming_capture
        self.device_name_of = device.device_name_of


def test_on_a_gpu_a_row_has_times_memory_and_what_was_predicted(device: EmulatedDevice) -> None:
    session, known = a_session(device)
    session = replace(session, device=_CalledCuda(device))
    terms = Terms(PROFILE, measure_s=0.05)
    row = try_strategy(fakes.Fake(), session, known, terms=terms)
    assert row.verification is not None
    assert row.verification.method == "within eager's own deviation"
    assert row.status == "verified"
    assert row.measurement is not None
    assert row.measurement.blocks >= 6
    assert row.predicted is not None
    assert row.prepare_s is not None and row.prepare_s > 0
    assert (row.extra_bytes, row.peak_bytes) == (0, 0)  # the emulated device's allocator
    assert row.launches is None  # no kernel runs here for a profiler to see
    wrong = try_strategy(fakes.Wrong(), session, known, terms=terms)
    assert (wrong.status, wrong.measurement) == ("wrong", None), wrong
    assert wrong.prepare_s is not None


def on_a_gpu(
    device: EmulatedDevice, strategy: Strategy, *, is_random: bool = False
) -> StrategyOutcome:
    session, known = a_session(device)
    session = replace(session, device=_CalledCuda(device))
    if is_random:
        known = replace(known, iteration=drawing(known.iteration))
    return try_strategy(strategy, session, known, terms=Terms(PROFILE, measure_s=0.05))


def drawing(iteration: Iteration) -> Iteration:
    """Its first operator draws random numbers."""
    first, *others = iteration.ops
    first = msgspec.structs.replace(first, tags=(*first.tags, "nondeterministic_seeded"))
    return msgspec.structs.replace(iteration, ops=(first, *others))


def test_a_comparator_that_draws_other_numbers_is_timed_and_stays_unverified(
    device: EmulatedDevice,
) -> None:
    class Draws(fakes.Rounding):
        def change(self, outputs: Any) -> Any:
            return outputs * torch.rand((), device="cuda")

    row = on_a_gpu(device, Draws(), is_random=True)
    assert (row.status, row.code, row.deviation) == ("not-verified", "", None)
    assert row.measurement is not None
    advice = recommend((row,), ())
    assert advice is not None
    assert advice.strategy == "none"


@contextmanager
def tf32_products(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_where_products_take_tf32_half_of_its_digits_must_agree(device: EmulatedDevice) -> None:
    class LikeTF32(fakes.Rounding):
        def change(self, outputs: Any) -> Any:
            return outputs * (1 + 2e-3)

    with tf32_products(True):
        coarse = on_a_gpu(device, LikeTF32())
    with tf32_products(False):
        fine = on_a_gpu(device, LikeTF32())
    assert coarse.status == "verified", coarse.reason
    assert coarse.verification is not None
    assert coarse.verification.method == "to half of TF32's digits"
    assert coarse.deviation == pytest.approx(2e-3, rel=0.1)
    assert fine.status == "wrong"


def test_a_convolution_has_the_digits_of_tf32_unless_that_is_forbidden(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Conv2d(3, 4, 3).cuda()
    target = Target(
        "step",
        __file__,
        "test",
        "inference",
        torch.no_grad()(model),
        lambda: Inputs((torch.randn(1, 3, 8, 8, device="cuda"),)),
        {"model": model},
    )
    session = prepare(target, device, iterations=2)
    iteration = record(session, progress=lambda doing: None).captured[-1]
    with torch.backends.cudnn.flags(allow_tf32=True):
        assert digits_of(iteration) == Digits("TF32", 2**-11)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
        assert digits_of(iteration) == Digits()
        monkeypatch.undo()
    with torch.backends.cudnn.flags(allow_tf32=False):
        assert digits_of(iteration) == Digits()


def test_products_under_autocast_have_the_digits_of_a_half(device: EmulatedDevice) -> None:
    _, known = a_session(device)
    assert digits_of(known.iteration) == Digits()
    product_op = next(op for op in known.iteration.ops if op.base_name == "addmm")
    halves = tuple(msgspec.structs.replace(use, dtype="bfloat16") for use in product_op.inputs)
    half = msgspec.structs.replace(product_op, args=halves)
    iteration = msgspec.structs.replace(known.iteration, ops=(*known.iteration.ops, half))
    assert digits_of(iteration) == Digits("bfloat16", 2**-7)


@pytest.mark.parametrize(
    ("note", "share", "reason"),
    [
        ("", 0.0, "torch launched nothing of it by CUDA graphs, and did not say why"),
        ("torch ran 1 graph without CUDA graphs: mutated inputs", 0.0, "mutated inputs"),
        ("", 0.9, ""),
    ],
)
def test_a_way_of_graphs_without_a_graph_says_why(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, note: str, share: float, reason: str
) -> None:
    class Graphs(fakes.Rounding):
        has_graphs = True

        def build(self, session: Any, known: Known) -> Any:
            built = super().build(session, known)
            built.note = note  # type: ignore[attr-defined]
            return built

    seen = timing.Seen(launches=40.0, busy_share=0.5, graphed_share=share)
    timed = timing.Timed(measurement(0.4, 0.5, 0.6), seen, seen)
    monkeypatch.setattr(trial, "time_built", lambda *_, **__: timed)
    row = on_a_gpu(device, Graphs())
    assert (row.status, row.captured_share) == ("verified", share)
    assert row.reason.endswith(reason)
    assert ("CUDA graphs" in row.reason) == bool(reason)


def test_nothing_of_a_compiler_runs_or_lies_around_while_a_step_is_timed(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def timed(*_: Any, **__: Any) -> Measurement:
        done.append(f"timed, frozen {gc.get_freeze_count() > 0}")
        return measurement(1.9, 2.0, 2.1)

    pools = SimpleNamespace(shutdown_compile_workers=lambda: done.append("workers ended"))
    monkeypatch.setitem(sys.modules, "torch._inductor.async_compile", pools)
    monkeypatch.setattr(timing, "measure", timed)
    on_a_gpu(device, fakes.Fake())
    assert done == ["workers ended", "timed, frozen True"]
    assert gc.get_freeze_count() == 0


def test_this_torch_can_end_its_compile_workers() -> None:
    from torch._inductor import async_compile

    assert callable(async_compile.shutdown_compile_workers)


def test_a_step_that_moves_a_number_is_not_called_thousands_of_times(
    device: EmulatedDevice,
) -> None:
    session, _ = a_session(device)
    step = SimpleNamespace(start=session.start)
    assert timing._blocks(session, step).most_calls == len(session.batches)  # type: ignore[arg-type]


def test_what_graphs_launched_is_told_from_what_they_did_not(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.step(1, 0, 100)
    graph = builder.call("cudaGraphLaunch", 1, 5)
    for start in (10, 20, 30):
        builder.kernel(graph, start, 5)
    builder.kernel(builder.call("cudaLaunchKernel", 7, 2), 40, 5)
    assert timing.graphed_share(builder.trace()) == pytest.approx(0.75)


def test_a_plan_and_a_note_become_part_of_the_row(device: EmulatedDevice) -> None:
    class Planned(fakes.Fake):
        def plan(self, known: Known) -> str:
            return "graph 1: all of it"

        def build(self, session: Any, known: Known) -> Any:
            built = super().build(session, known)
            built.note = "one graph was made"  # type: ignore[attr-defined]
            return built

    row = tried(device, Planned())
    assert row.plan == "graph 1: all of it"
    assert row.reason.endswith("bit for bit; one graph was made")


# --- in processes of their own


def job_for(tmp_path: Path, strategy: Strategy, *, time_limit_s: float = 120.0) -> Job:
    file = tmp_path / "step_of_test.py"
    file.write_text(STEP_FILE)
    with EmulatedDevice() as device:
        _, known = a_session(device)
        row = foresee(strategy, known, PROFILE)
    return Job(
        spec=str(file),
        mode=None,
        inputs=(),
        device="emulated",
        iterations=3,
        gpu="h100",
        strategy=strategy,
        row=row,
        findings=(),
        safe_modules=("",),
        iteration=known.iteration,
        measure_s=1.0,
        time_limit_s=time_limit_s,
    )


@pytest.mark.parametrize(
    ("strategy", "status", "words"),
    [
        (fakes.OneGraph(), "verified", "equal eager's bit for bit"),
        (fakes.Exiting(), "failed", "exit code 7: the last words"),
        (fakes.Killed(), "failed", "SIGABRT"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_process_of_its_own_gives_a_row_or_the_way_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Strategy, status: str, words: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with own_processes() as running:
        row = in_own_process(running, job_for(tmp_path, strategy), is_last=True)
    assert row.status == status
    assert words in row.reason


def test_a_process_that_hangs_is_ended_and_told_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    job = job_for(tmp_path, fakes.Hanging(), time_limit_s=15.0)
    with own_processes() as running:
        row = in_own_process(running, job, is_last=True)
    assert row.status == "timed-out"
    assert row.reason == "it did not end within 15 s"
    assert row.location is not None
    assert Path(row.location.file).name == "fake_strategies.py"


def test_what_a_process_imports_before_its_gate_starts_no_compiler_and_no_gpu() -> None:
    code = (
        "import sys, graphdoctor.strategies.own_process, torch; "
        "print(torch.cuda.is_initialized(), 'torch._inductor' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "False"]


def test_the_next_process_waits_until_the_one_before_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing runs before the gate opens, and the time for it is counted from there."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    log = tmp_path / "log.txt"
    monkeypatch.setenv("GRAPHDOCTOR_TEST_LOG", str(log))
    job = job_for(tmp_path, fakes.Logging())
    with own_processes() as running:
        first = in_own_process(running, job, is_last=False)
        waiting = running._next
        assert waiting is not None
        time.sleep(5.0)  # long enough for it to start up, and to run if nothing held it
        assert waiting.popen.poll() is None
        assert len(log.read_text().splitlines()) == 1
        second = in_own_process(running, job, is_last=True)
        assert waiting.popen.poll() is not None
        assert running._next is None
    assert (first.status, second.status) == ("verified", "verified"), (first, second)
    assert [line.split()[1:] for line in log.read_text().splitlines()] == [["nothing"]] * 2
    assert len({line.split()[0] for line in log.read_text().splitlines()}) == 2


def test_the_time_of_a_process_is_counted_from_its_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with own_processes() as running:
        running.start_next()
        time.sleep(4.0)
        start = time.monotonic()
        job = job_for(tmp_path, fakes.Hanging(), time_limit_s=10.0)
        row = in_own_process(running, job, is_last=True)
    assert row.status == "timed-out"
    assert time.monotonic() - start >= 10.0
    assert row.location is not None
    assert Path(row.location.file).name == "fake_strategies.py"


# --- side by side


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a test say which strategies there are."""

    def these(*strategies: Strategy) -> None:
        monkeypatch.setattr(strategies_package, "STRATEGIES", strategies)
        monkeypatch.setattr(choice, "STRATEGIES", strategies)

    return these


def hazardous() -> object:
    layer = torch.nn.Linear(8, 8).cuda()

    def step(data: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            data = layer(data)
            for _ in range(12):
                data = torch.relu(data + 1)
            float(data.sum())
            for _ in range(12):
                data = torch.relu(data + 1)
            return data

    return step, (torch.randn(4, 8, device="cuda"),)


def test_a_report_has_a_row_for_each_and_recommends_the_fastest_that_was_verified(
    listed: Any,
) -> None:
    listed(fakes.Wrong(), fakes.Fake(), fakes.Refusing(), fakes.Compiling(), fakes.Rounding())
    report = analyze(hazardous, device="emulated")
    assert [(row.strategy, row.status) for row in report.strategies] == [
        ("wrong", "wrong"),
        ("fake", "verified"),
        ("refusing", "refused"),
        ("compiling", "planned"),
    ]  # a comparator is not tried without a GPU, unless it is asked for
    advice = report.recommendation
    assert advice is not None
    assert (advice.strategy, advice.code) == ("fake", "fast = step\n")
    assert "prediction" in advice.sentence
    assert "GD101" in advice.then
    assert "is all that keeps the step from being one graph" in advice.then


def test_none_of_them_means_none(listed: Any) -> None:
    listed(fakes.Fake())
    report = analyze(hazardous, device="emulated", strategies=())
    assert report.strategies == ()
    assert report.recommendation is None


def test_an_unknown_name_is_refused_with_the_nearest_one(listed: Any) -> None:
    listed(fakes.Fake(), fakes.Rounding())
    with pytest.raises(
        UsageError, match=r"no strategy 'fakes', did you mean 'fake'\? \(there are fake,"
    ):
        analyze(hazardous, device="emulated", strategies=("fakes",))


def test_what_the_budget_does_not_reach_says_so(listed: Any) -> None:
    listed(fakes.Fake(), fakes.Wrong())
    report = analyze(hazardous, device="emulated", budget_s=1e-9)
    assert [row.status for row in report.strategies] == ["timed-out", "timed-out"]
    assert "not tried within the budget of 1e-09 s" in report.strategies[0].reason
    assert report.recommendation is not None
    assert report.recommendation.strategy == "none"


def test_a_whole_step_that_was_captured_is_not_tried_again_nor_bettered() -> None:
    class Named(fakes.Fake):
        name = "other"

    def safe() -> object:
        layer = torch.nn.Linear(8, 8).cuda()
        return layer.eval(), (torch.randn(4, 8, device="cuda"),)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "STRATEGIES", (Whole(), Named()))
        patch.setattr(Whole, "build", None)
        report = analyze(safe, device="emulated")
        asked = analyze(safe, device="emulated", strategies=("other", "whole"))
    whole, other = report.strategies
    assert (whole.status, other.status) == ("verified", "unfit")
    assert whole.verification == report.captures[0].verification
    assert report.estimate is not None
    assert whole.predicted == report.estimate.speedup
    assert "nothing is left" in other.reason
    assert [row.status for row in asked.strategies] == ["verified", "verified"]


def test_a_refused_whole_step_keeps_the_finding_as_its_reason() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "STRATEGIES", (Whole(),))
        (row,) = analyze(hazardous, device="emulated").strategies
    assert row.status == "refused"
    assert "GD101" in row.reason
    assert row.location is not None
    assert row.predicted is None


@pytest.fixture
def believed_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The analysis takes the emulated device for a real one; other processes see what it is."""

    @contextmanager
    def open_device(choice: object, profile: object) -> Iterator[EmulatedDevice]:
        with EmulatedDevice() as emulated:
            monkeypatch.setattr(emulated, "kind", "cuda", raising=False)
            yield emulated

    monkeypatch.setattr("graphdoctor.pipeline.open_device", open_device)
    monkeypatch.setattr("graphdoctor.measure.speed._BUDGET_S", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.mark.usefixtures("believed_gpu")
def test_on_a_gpu_each_strategy_but_the_captured_step_goes_to_a_process_of_its_own(
    listed: Any, tmp_path: Path
) -> None:
    listed(Whole(), fakes.Exiting(), fakes.OneGraph())
    file = tmp_path / "gpu_step_of_test.py"
    file.write_text(STEP_FILE)
    doing: list[str] = []
    names = ("whole", "exiting", "one-graph")
    report = analyze_target(str(file), AnalyzeOptions(strategies=names), doing.append)
    whole, exiting, graph = report.strategies
    assert (whole.status, exiting.status, graph.status) == ("verified", "failed", "verified")
    assert whole.measurement == report.measurement
    assert whole.measurement is not None
    assert whole.prepare_s is not None
    assert whole.predicted is not None
    assert "exit code 7" in exiting.reason
    assert "trying exiting (1 of 2)" in doing
    assert report.recommendation is not None
    assert report.recommendation.strategy in ("whole", "none")  # nothing is faster here for sure


@pytest.mark.usefixtures("believed_gpu")
def test_the_last_that_fits_has_all_that_is_left_of_the_budget_and_nothing_waits_behind_it(
    listed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool, float]] = []

    def run(processes: object, job: Job, *, is_last: bool) -> StrategyOutcome:
        asked.append((job.strategy.name, is_last, job.time_limit_s))
        return job.row

    monkeypatch.setattr(side_by_side, "in_own_process", run)
    listed(fakes.Fake(), fakes.OneGraph(), fakes.Unfit())
    file = tmp_path / "last_step_of_test.py"
    file.write_text(STEP_FILE)
    names = ("fake", "one-graph", "unfit")
    analyze_target(str(file), AnalyzeOptions(strategies=names), lambda doing: None)
    assert [(name, is_last) for name, is_last, _ in asked] == [("fake", False), ("one-graph", True)]
    assert asked[0][2] == pytest.approx(60.0, rel=0.1)
    assert asked[1][2] == pytest.approx(120.0, rel=0.1)


@pytest.mark.usefixtures("believed_gpu")
def test_an_object_on_a_gpu_has_the_captured_step_only(listed: Any) -> None:
    listed(Whole(), fakes.OneGraph())
    model = torch.nn.Linear(8, 8).eval()
    report = analyze(model, torch.randn(4, 8), strategies=("whole", "one-graph"))
    assert [row.status for row in report.strategies] == ["verified", "unfit"]
    assert "graphdoctor analyze file.py" in report.strategies[1].reason


def test_the_analysed_model_is_as_it_was(listed: Any, tmp_path: Path) -> None:
    listed(fakes.Spoiling(), fakes.Fake())
    model = torch.nn.Linear(4, 4)
    before, given = model.weight.clone(), torch.randn(2, 4)
    generator = torch.get_rng_state()
    report = analyze(model, given, device="emulated", strategies=("spoiling", "fake"))
    assert [row.status for row in report.strategies] == ["verified", "verified"]
    assert torch.equal(model.weight, before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert model.training


def test_a_file_is_compared_as_an_object_is(listed: Any, tmp_path: Path) -> None:
    listed(fakes.Fake())
    file = tmp_path / "file_of_test.py"
    file.write_text(STEP_FILE)
    options = AnalyzeOptions(device="emulated", strategies=("fake",))
    report = analyze_target(str(file), options, lambda doing: None)
    assert [row.status for row in report.strategies] == ["verified"]


# --- recommending


def outcome(
    name: str,
    *,
    status: Any = "verified",
    predicted: float | None = None,
    measured: tuple[float, float, float] | None = None,
    eager_us: float = 1000.0,
    is_ours: bool = True,
) -> StrategyOutcome:
    return StrategyOutcome(
        strategy=name,
        title=f"the way of {name}",
        is_ours=is_ours,
        status=status,
        predicted=Range(predicted * 0.8, predicted, predicted * 1.2) if predicted else None,
        measurement=measurement(*measured, eager_us=eager_us) if measured else None,
        code=f"use {name}\n",
    )


def measurement(low: float, mid: float, high: float, *, eager_us: float = 1000.0) -> Measurement:
    word: Any = "faster" if low > 1 else "slower" if high < 1 else "no change"
    return Measurement(
        eager_us=eager_us,
        graph_us=eager_us / mid,
        speedup=mid,
        speedup_low=low,
        speedup_high=high,
        confidence=0.95,
        blocks=30,
        calls_per_block=20,
        word=word,
        gpu="NVIDIA H200",
    )


def advised(*rows: StrategyOutcome, findings: tuple[Finding, ...] = ()) -> Any:
    return recommend(rows, findings)


def test_the_fastest_measured_way_of_ours_is_recommended() -> None:
    advice = advised(
        outcome("slow", measured=(1.1, 1.2, 1.3)),
        outcome("fast", measured=(1.9, 2.0, 2.1)),
        outcome("wrong", status="wrong", measured=(8.0, 9.0, 10.0)),
    )
    assert (advice.strategy, advice.code) == ("fast", "use fast\n")
    assert "measured at 2.00x (1.90 to 2.10)" in advice.sentence


def test_of_those_that_are_not_clearly_slower_the_simplest_is_recommended() -> None:
    whole = outcome("whole", measured=(3.15, 3.23, 3.31))
    split = outcome("split-step", measured=(3.22, 3.30, 3.38))
    clear = outcome("split-step", measured=(3.60, 3.70, 3.80))
    assert advised(whole, split).strategy == "whole"
    assert advised(whole, clear).strategy == "split-step"


def test_rows_are_compared_by_the_time_of_their_step_and_not_by_a_noisy_eager() -> None:
    """As seen on an H200, where a compiler's workers ran beside eager."""
    split = outcome("split-step", measured=(7.9, 8.0, 8.1), eager_us=4100.0)
    segments = outcome("segments", measured=(1.9, 2.0, 2.1), eager_us=4100.0)
    noisy = outcome("reduce-overhead", measured=(13.3, 13.4, 13.5), eager_us=8000.0, is_ours=False)
    advice = advised(split, segments, noisy)
    assert advice.strategy == "split-step"  # 512 us, against 597 us
    alone = advised(segments, outcome("whole", measured=(1, 1, 1), eager_us=4100.0), noisy)
    assert alone.strategy == "reduce-overhead"
    assert "measured at 6.87x (6.82 to 6.92) against the median of all rows'" in alone.sentence
    assert "13.4" not in alone.sentence


def test_what_is_faster_than_a_slowed_eager_only_is_not_recommended() -> None:
    usual = [outcome(f"other{n}", measured=(0.9, 1.0, 1.1), eager_us=4000.0) for n in range(2)]
    slowed = outcome("slowed", measured=(1.4, 1.5, 1.6), eager_us=8000.0)
    assert advised(*usual, slowed).strategy == "none"


def test_a_row_with_another_eager_time_says_so_and_pays_later() -> None:
    rows = [outcome(name, measured=(1.9, 2.0, 2.1), eager_us=4100.0) for name in "ab"]
    near = outcome("near", measured=(1.9, 2.0, 2.1), eager_us=4600.0)
    odd = outcome("odd", measured=(3.9, 4.0, 4.1), eager_us=8000.0)
    odd = msgspec.structs.replace(odd, reason="as it is", prepare_s=1.0, break_even_calls=167)
    unmeasured = outcome("unmeasured")
    *same, told = with_noise_told((*rows, near, unmeasured, odd))
    assert same == [*rows, near, unmeasured]
    assert told.reason == (
        "as it is; eager took 8 ms here, 4.1 ms in the others: noise of the machine"
    )
    assert told.measurement == odd.measurement
    assert told.break_even_calls == 426  # 4.35 ms, the median of all, less 2 ms
    assert with_noise_told((odd,)) == (odd,)
    *same, told = with_noise_told((*rows, odd))
    assert same == rows
    assert "4.1 ms in the others" in told.reason
    first, second = with_noise_told((rows[0], odd))
    assert first.reason.startswith("eager took 4.1 ms here, 8 ms in the process of odd")
    assert "4.1 ms in the process of a: noise" in second.reason


def test_a_comparator_is_recommended_only_where_it_is_clearly_faster() -> None:
    ours = outcome("ours", measured=(1.9, 2.0, 2.1))
    near = outcome("compile", measured=(2.0, 2.2, 2.4), is_ours=False)
    far = outcome("compile", measured=(2.9, 3.0, 3.1), is_ours=False)
    assert advised(ours, near).strategy == "ours"
    assert advised(ours, far).strategy == "compile"
    assert (
        "clearly faster than graphdoctor's own best, ours at 2.00x" in advised(ours, far).sentence
    )


def test_what_is_no_faster_is_not_recommended() -> None:
    rows = outcome("same", measured=(0.9, 1.0, 1.1)), outcome("slow", measured=(0.4, 0.5, 0.6))
    advice = advised(*rows)
    assert (advice.strategy, advice.code) == ("none", "")
    assert "not faster than eager" in advice.sentence


def test_a_busy_gpu_is_the_reason_for_recommending_nothing() -> None:
    busy = Finding("GD301", "not-launch-bound", "replay-is-slow", "", "", "", None)
    assert "the GPU is busy" in advised(outcome("a", predicted=1.01), findings=(busy,)).sentence


def test_a_prediction_that_reaches_below_one_is_told_with_care() -> None:
    assert "may also bring nothing" in advised(outcome("a", predicted=1.2)).sentence
    assert "may also bring nothing" not in advised(outcome("a", predicted=2.0)).sentence


def test_of_equal_predictions_the_first_is_taken_and_never_what_was_only_planned() -> None:
    planned = outcome("planned", status="planned", predicted=5.0)
    rows = outcome("first", predicted=2.0), outcome("second", predicted=2.0), planned
    assert advised(*rows).strategy == "first"
    script = outcome("script", predicted=9.0, is_ours=False)
    assert advised(script, *rows).strategy == "first"  # not on the strength of a prediction
    assert would_pay_more(rows).startswith("On a GPU, planned can be tried: 5.00x")
    assert would_pay_more((outcome("first", predicted=4.9), planned)) == ""


def test_no_rows_no_advice() -> None:
    assert recommend((), ()) is None


def test_preparation_pays_after_so_many_calls_or_never() -> None:
    assert break_even_calls(1.0, measurement(1.9, 2.0, 2.1)) == 2000
    assert break_even_calls(1.0, measurement(0.9, 1.0, 1.1)) is None
    assert break_even_calls(1.0, measurement(0.4, 0.5, 0.6)) is None


def test_the_documentation_names_every_strategy() -> None:
    text = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text(encoding="utf-8")
    names = [strategy.name for strategy in strategies_package.STRATEGIES]
    assert [name for name in names if f"`{name}`" not in text] == []
    assert set(choice.COMPARATORS) <= set(names)
    assert len(set(names)) == len(names)


def test_comments_of_the_code_to_paste_are_no_wider_than_a_page(device: EmulatedDevice) -> None:
    """A page of 80 columns shows it indented by four."""
    _, known = a_session(device)
    for mode in ("training", "inference"):
        asked: Any = replace(known, mode=mode)
        lines = Modules().code(asked).splitlines()
        assert [line for line in lines if line.startswith("#") and len(line) > 76] == []
        assert lines[0].startswith("#")


def test_a_strategy_is_measured_for_four_seconds_or_a_sixth_of_its_time() -> None:
    assert measured_for(budget_s=600.0) == 4.0
    assert measured_for(budget_s=6.0) == pytest.approx(0.5, rel=0.01)


def measured_for(*, budget_s: float) -> float:
    known: Any = SimpleNamespace(findings=(), safe_modules=(), iteration=None)
    options = AnalyzeOptions(budget_s=budget_s)
    contest: Any = SimpleNamespace(options=options, known=known, left_s=budget_s)
    row = outcome("fake", status="planned")
    return side_by_side._job(contest, "f.py", fakes.Fake(), row, is_last=False).measure_s


def test_every_strategy_can_be_sent_to_a_process_of_its_own() -> None:
    for strategy in strategies_package.STRATEGIES:
        assert pickle.loads(pickle.dumps(strategy)).name == strategy.name
