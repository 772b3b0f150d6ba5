"""What benchmarks/gpu/strategies.py runs: every sample in every strategy, and the workloads of published figures."""

from __future__ import annotations

from dataclasses import dataclass

from samples_and_rules import sample_specs

QUICK = ("whole", "split-step", "modules", "segments", "script", "script-graph", "cudagraphs")
COMPILED = (*QUICK, "compile", "reduce-overhead")
ALL = (*COMPILED, "max-autotune")
SAMPLES = (*QUICK, "reduce-overhead")
BATCHES = "1,4,16,64,256,1024,4096"


@dataclass(frozen=True, slots=True)
class Case:
    """`command` gives its JSON to the file that "{out}" stands for."""

    name: str
    command: tuple[str, ...]


def _analyze(spec: str, strategies: tuple[str, ...], budget_s: int) -> Case:
    chosen = ("--strategies", ",".join(strategies), "--budget", f"{budget_s}s")
    command = ("-m", "graphdoctor", "analyze", spec, "--gpu", "h200", *chosen, "--json", "{out}")
    return Case(spec, command)


def _sweep(spec: str, batches: str) -> Case:
    command = ("-m", "graphdoctor", "sweep", spec, "--gpu", "h200", "--batch", batches)
    return Case(f"sweep {spec}", (*command, "--json", "{out}"))


def _workload(name: str, strategies: tuple[str, ...], budget_s: int = 150) -> Case:
    return _analyze(f"benchmarks/gpu/workloads/{name}", strategies, budget_s)


def _sample(spec: str) -> Case:
    published = spec.partition(":")[0].endswith(("gelu.py", "linear_dropout.py", "resnet50.py"))
    return _analyze(spec, ALL if published else SAMPLES, 240 if published else 180)


def cases() -> list[Case]:
    """The longest first, so that several GPUs end together; then the published ones, then samples."""
    return [
        _workload("vision.py:swin_b_fp32", COMPILED, 240),
        _workload("vision.py:swin_b_autocast", COMPILED, 240),
        _workload("vision.py:convnext_l_fp32", COMPILED, 240),
        _workload("vision.py:convnext_l_autocast", COMPILED, 240),
        _workload("vision.py:swin_t_fp32", COMPILED, 240),
        _workload("vision.py:swin_t_autocast", COMPILED, 240),
        _workload("vision.py:mask_rcnn_backbone", ALL, 240),
        _workload("vision.py:mask_rcnn", QUICK, 200),
        _workload("bert.py:gathered", COMPILED, 200),
        _workload("bert.py:static", COMPILED, 200),
        _workload("bert.py:inference", ALL, 200),
        _workload("decode.py:llama", COMPILED, 200),
        _workload("decode.py:gpt2", COMPILED, 200),
        _workload("linear_dropout.py", ALL),
        _sweep("benchmarks/gpu/workloads/dlrm.py:inference", BATCHES),
        _sweep("benchmarks/gpu/workloads/dlrm.py:training", BATCHES),
        _sweep("benchmarks/gpu/workloads/linear_dropout.py", "32,64,128,256,640,1280"),
        _workload("dlrm.py:inference", COMPILED),
        _workload("dlrm.py:training", COMPILED),
        Case("timing mistake", ("benchmarks/gpu/timing_mistake.py", "--json", "{out}")),
        Case("drop-in overhead", ("benchmarks/speed/captured_call.py", "--json", "{out}")),
        *map(_sample, sample_specs()),
    ]
