"""The figures from which a GPU's time is estimated, each with its source."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct, structs

from graphdoctor.values.errors import UsageError
from graphdoctor.values.figures import Range
from graphdoctor.values.spelling import meant

Level = Literal["low", "mid", "high"]
LEVELS: tuple[Level, ...] = ("low", "mid", "high")
ASSUMED = "assumed"  # the source of a figure that nobody measured; such a figure has a wide range

UNKNOWN_GPU = "unknown GPU"

_COMMON = "common.toml"
S = TypeVar("S", bound=Struct)


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """A figure within bounds, and where it comes from."""

    low: float
    mid: float
    high: float
    source: str

    def at(self, level: Level) -> float:
        value: float = getattr(self, level)
        return value

    @property
    def range(self) -> Range:
        return Range(self.low, self.mid, self.high)


class HostCosts(Struct, frozen=True, forbid_unknown_fields=True):
    """Host time of one operator by what it has to do, in us, launches not included."""

    module_call: Figure  # nn.Module.__call__ and the Python of its forward
    operator: Figure  # Python binding and dispatch of one operator
    collective: Figure  # the same of one that NCCL runs: its work, its events and its launch
    autograd: Figure  # added where the operator is recorded for backward
    library_call: Figure  # added for cuBLAS and cuDNN: choosing the kernel
    backward_node: Figure  # the autograd engine runs one node
    optimizer_foreach: Figure  # added to one _foreach or fused operator: grouping its lists
    backward_pass: Figure  # once each: autograd's engine starts, hands work to its thread, and ends
    gradient: Figure  # once for each trained parameter: what the engine does for it
    view: Figure  # an operator that only makes a view
    allocation: Figure  # one block from the caching allocator


class CallCosts(Struct, frozen=True, forbid_unknown_fields=True):
    """Host time of calling graphs of parts of a step beside their launches, in us."""

    module: Figure  # one graph of a module: guards, copies
    trained_module: Figure  # one graph of a module's forward or backward: autograd's function too
    segment: Figure  # one graph that Dynamo's code calls: guards, wrapper, addresses, copies
    segment_tensor: Figure  # each parameter and buffer that it guards, and asks where it lies
    segment_module: Figure  # each module that it guards
    trained_segment: Figure  # the same of a forward or backward: AOTAutograd's function too
    segment_parameter: Figure  # each trained parameter: handed over, and its gradient handed back
    glue: Figure  # the Python of an optimizer's or a schedule's step that launches next to nothing


class MathRates(Struct, frozen=True, forbid_unknown_fields=True):
    """Dense matrix arithmetic at its peak, in TFLOP/s."""

    fp64: Figure
    fp32: Figure
    tf32: Figure
    fp16: Figure
    bf16: Figure


class KernelFigures(Struct, frozen=True, forbid_unknown_fields=True):
    """One figure for each kind of kernel."""

    stream: Figure  # elementwise on contiguous memory
    strided: Figure  # elementwise with a strided or broadcast operand
    reduce: Figure
    columns: Figure  # sums over what lies apart in memory: gradients of biases and of norms
    normalize: Figure  # softmax, layer norm: several passes over a row
    concat: Figure
    gather: Figure  # index, embedding, scatter
    matmul: Figure
    convolution: Figure
    attention: Figure
    optimizer: Figure  # one launch for many tensors


class Network(Struct, frozen=True, forbid_unknown_fields=True):
    """What lies between the GPUs of one host."""

    link_gb_s: Figure  # that a GPU sends to the others at once, at its peak, in one direction
    latency_us: Figure  # of the smallest collective between two GPUs
    small_share: Figure  # of the peak, reached by small collectives
    setup_us: Figure  # of a large collective between two GPUs, without its data
    share: Figure  # of the peak, reached by large all-reduces
    parts_share: Figure  # of the peak, where ranks have or get a part each: gathers, scatters
    hop_us: Figure  # added each time that data are passed on once more
    hindrance: Figure  # of a collective's time, by which other work beside it takes longer


class DeviceProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that an estimate needs to know about one GPU and the host that feeds it.

    The host's figures are those of the class `server`; `estimate/hosts` puts another host in its place.
    """

    name: str
    title: str
    device_names: tuple[str, ...]  # what torch.cuda.get_device_name() contains
    fitted_on: str  # the profile of the GPU whose traces the kernel figures come from
    host: str  # what feeds the GPU, in words
    launch_us: Figure  # host time of one kernel launch
    launch_latency_us: Figure  # from the start of a launch to the kernel on an idle device
    host_us: HostCosts
    call_us: CallCosts
    memory_gb_s: Figure  # peak
    cache_mb: Figure  # the last-level cache
    cache_speedup: Figure  # of the memory bandwidth, for operands that the cache holds
    memory_share: KernelFigures  # of the peak, reached by each kind of kernel
    math_tflops: MathRates
    math_share: Figure  # of the peak, reached by matrix products
    convolution_share: Figure  # of the peak, reached by convolutions
    unaligned_share: Figure  # of math_share, by half-precision rows of no multiple of 16 bytes
    attention_share: Figure  # of the peak, reached by attention
    smallest_kernel_us: KernelFigures
    queue_gap_us: Figure  # between two kernels of a stream that were both queued
    node_gap_us: Figure  # between two nodes of a graph
    graph_launch_us: Figure  # host time of one graph launch, however few nodes it has
    graph_node_launch_us: Figure  # host time that each node adds to it
    copy_gb_s: Figure  # host to device and back
    sync_us: Figure  # from the end of the device's work to the host going on
    network: Network

    def launch_of_graph_us(self, nodes: int) -> Range:
        """Host time of launching a graph of so many nodes."""
        return self.graph_launch_us.range + self.graph_node_launch_us.range * nodes


@cache
def profile_names() -> tuple[str, ...]:
    """The names that `load_profile` knows, in alphabetical order."""
    folder = files(__name__)
    found = (entry.name for entry in folder.iterdir())
    return tuple(
        sorted(
            name[: -len(".toml")] for name in found if name.endswith(".toml") and name != _COMMON
        )
    )


@cache
def load_profile(name: str) -> DeviceProfile:
    """The profile called `name` ("h100"), the one of a device name ("NVIDIA H100 80GB HBM3"), or a file.

    A file, which `graphdoctor calibrate` writes, is what ends in .toml. Raises UsageError, naming
    the known profiles, when there is none.
    """
    if name.endswith(".toml"):
        return read_profile(Path(name))
    wanted = name.strip().lower()
    if wanted in profile_names():
        return _read(wanted)
    matches = [
        (len(part), profile)
        for profile in profile_names()
        for part in _device_names(profile)
        if re.search(rf"(?<!\w){re.escape(part.lower())}(?!\w)", wanted)
    ]
    if not matches:
        known = profile_names()
        raise UsageError(
            f"there is no device profile for {name!r} (there are {', '.join(known)})"
            f"{meant(wanted, known)}"
        )
    # "H100 PCIe" is also an "H100": the longest text that fits is the closest.
    return _read(max(matches, key=lambda match: match[0])[1])


def unknown_profile() -> DeviceProfile:
    """What may be any GPU's: each figure from the lowest to the highest of all profiles, the middle one likely."""
    merged = _around([_read(name) for name in profile_names()])
    return structs.replace(merged, name="unknown", title=UNKNOWN_GPU, device_names=())


def _around(profiles: Sequence[S]) -> S:
    merged: dict[str, Any] = {}
    for field in profiles[0].__struct_fields__:
        values = [getattr(profile, field) for profile in profiles]
        if isinstance(values[0], Figure):
            merged[field] = Figure(
                low=min(value.low for value in values),
                mid=sorted(value.mid for value in values)[len(values) // 2],
                high=max(value.high for value in values),
                source=f"{ASSUMED}: anything from the lowest to the highest figure of the known GPUs",
            )
        elif isinstance(values[0], Struct):
            merged[field] = _around(values)
    return structs.replace(profiles[0], **merged)


def read_profile(path: Path) -> DeviceProfile:
    """A profile of one's own; figures that it lacks are those that all profiles start from."""
    return read_file(path, DeviceProfile, called="device profile", over=_common())


def read_file(path: Path, kind: type[S], *, called: str, over: dict[str, Any]) -> S:
    """A person's own file of figures, laid over others. Raises UsageError, which says what it is `called`."""
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(_overlay(over, own), kind)
    except OSError as error:
        raise UsageError(f"cannot read the {called} {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{path} is not a {called}: {error}") from error


def assumed_figures(profile: DeviceProfile) -> tuple[str, ...]:
    """The figures that nobody measured, by path ("host_us.module_call")."""
    return tuple(path for path, figure in figures(profile) if figure.source.startswith(ASSUMED))


def figures(profile: Struct, prefix: str = "") -> Iterator[tuple[str, Figure]]:
    """Every figure of a profile with its path."""
    for field in profile.__struct_fields__:
        value = getattr(profile, field)
        if isinstance(value, Figure):
            yield prefix + field, value
        elif isinstance(value, Struct):
            yield from figures(value, f"{prefix}{field}.")


@cache
def _read(name: str) -> DeviceProfile:
    return msgspec.convert(_overlay(_common(), tomllib.loads(_text(name))), DeviceProfile)


def _device_names(name: str) -> list[str]:
    """The only line of a profile that tells whether it is the one: the others need not be read."""
    line = next(line for line in _text(name).splitlines() if line.startswith("device_names"))
    names: list[str] = tomllib.loads(line)["device_names"]
    return names


def _text(name: str) -> str:
    return (files(__name__) / f"{name}.toml").read_text(encoding="utf-8")


@cache
def _common() -> dict[str, Any]:
    return tomllib.loads((files(__name__) / _COMMON).read_text(encoding="utf-8"))


def _overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` wins, figure by figure; a figure is replaced whole, so that its source stays true."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        is_group = isinstance(value, dict) and "source" not in value
        merged[key] = _overlay(under, value) if is_group and isinstance(under, dict) else value
    return merged
