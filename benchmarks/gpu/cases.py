"""What benchmarks/gpu/strategies.py measures: workloads and families, each with its strategies, and other commands."""

from __future__ import annotations

from dataclasses import dataclass

from samples_and_rules import sample_specs

SLOWEST = "max-autotune"  # to prepare: it times kernels for minutes
COMPILING = ("compile", "reduce-overhead", "compiled-whole", "compiled-split", SLOWEST)
COMPARATORS = ("compile", "reduce-overhead", "cudagraphs", SLOWEST)
INFERENCE = ("whole", "compiled-whole", "modules", *COMPARATORS)
TRAINING = ("whole", "compiled-whole", "split-step", "compiled-split", "modules", *COMPARATORS)
PARTS = ("modules", "segments", *COMPARATORS)
SCRIPTED = ("whole", "compiled-whole", "script", "script-graph", *COMPARATORS)
BATCHES = "1,4,16,64,256,1024,4096"

FAMILIES = {
    "sequences": "lstm gru tcn conformer translation state_space experts cross_decode",
    "pictures": "mixer vit segmentation mobile detection autoencoder diffusion_transformer sharper points",
    "worlds": "physics control two_towers factors graph_attention field contrast flow penalty",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """A target, and the strategies that are measured on it, each in a process of its own."""

    name: str
    strategies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """`arguments` of Python give their JSON to the file that "{out}" stands for."""

    name: str
    arguments: tuple[str, ...]


def _workload(name: str, strategies: tuple[str, ...]) -> Workload:
    return Workload(f"benchmarks/gpu/workloads/{name}", strategies)


def workloads() -> list[Workload]:
    """Those whose whole step is safe first: there every strategy can be compared."""
    return [
        _workload("decode.py:gpt2", INFERENCE),
        _workload("decode.py:llama", INFERENCE),
        _workload("bert.py:inference", INFERENCE),
        _workload("dlrm.py:training", TRAINING),
        _workload("learning.py:ppo", TRAINING),
        _workload("speech.py:whisper_tiny", INFERENCE),
        _workload("learning.py:gan", TRAINING),
        _workload("learning.py:graph", TRAINING),
        _workload("diffusion.py:denoise", INFERENCE),
        _workload("vision.py:mask_rcnn_backbone", INFERENCE),
        _workload("dlrm.py:inference", INFERENCE),
        _workload("learning.py:q_learning", TRAINING),
        _workload("linear_dropout.py", TRAINING),
        _workload("bert.py:static", TRAINING),
        _workload("bert.py:gathered", PARTS),
        _workload("learning.py:fourier", TRAINING),
        _workload("speech.py:wav2vec2", INFERENCE),
        _workload("vision.py:resnet50", INFERENCE),
        _workload("diffusion.py:training", TRAINING),
        _workload("vision.py:swin_t_autocast", TRAINING),
        _workload("vision.py:swin_t_fp32", TRAINING),
        _workload("vision.py:convnext_l_autocast", TRAINING),
        _workload("vision.py:convnext_l_fp32", TRAINING),
        _workload("vision.py:swin_b_autocast", TRAINING),
        _workload("vision.py:swin_b_fp32", TRAINING),
        _workload("vision.py:mask_rcnn", PARTS),
        *(Workload(spec, _of_sample(spec)) for spec in sample_specs()),
    ]


def families() -> list[Workload]:
    """Models that nothing was fitted to, one of each kind: predictions are judged by them."""
    return [
        _workload(f"{file}.py:{entry}", ("whole", "modules", "segments"))
        for file, entries in FAMILIES.items()
        for entry in entries.split()
    ]


def _of_sample(spec: str) -> tuple[str, ...]:
    if spec.partition(":")[0].endswith(("gelu.py", "linear_dropout.py", "resnet50.py")):
        return SCRIPTED  # as the published figures are
    return ("whole", "compiled-whole", "split-step", "compiled-split", *PARTS)


def _sweep(spec: str, batches: str) -> Command:
    command = ("-m", "graphdoctor", "sweep", spec, "--gpu", "h200", "--batch", batches)
    return Command(f"sweep {spec}", (*command, "--json", "{out}"))


def commands() -> list[Command]:
    """What is measured by a command of its own."""
    return [
        _sweep("benchmarks/gpu/workloads/dlrm.py:inference", BATCHES),
        _sweep("benchmarks/gpu/workloads/dlrm.py:training", BATCHES),
        _sweep("benchmarks/gpu/workloads/linear_dropout.py", "32,64,128,256,640,1280"),
        Command("timing mistake", ("benchmarks/gpu/timing_mistake.py", "--json", "{out}")),
        Command("drop-in overhead", ("benchmarks/speed/captured_call.py", "--json", "{out}")),
    ]
