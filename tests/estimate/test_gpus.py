"""Device profiles: every figure is bounded and has a source, and every name leads somewhere."""

from __future__ import annotations

import subprocess
import sys
from operator import attrgetter

import pytest

from graphdoctor.estimate.gpus import (
    assumed_figures,
    figures,
    load_profile,
    profile_names,
    unknown_profile,
)
from graphdoctor.values.errors import UsageError


@pytest.mark.parametrize("name", profile_names())
def test_every_figure_is_ordered_positive_and_has_a_source(name: str) -> None:
    for path, figure in figures(load_profile(name)):
        assert 0 < figure.low <= figure.mid <= figure.high, path
        assert len(figure.source) > 10, path


@pytest.mark.parametrize("name", profile_names())
def test_what_nobody_measured_has_a_wide_range(name: str) -> None:
    profile = load_profile(name)
    by_path = dict(figures(profile))
    assert assumed_figures(profile)
    for path in assumed_figures(profile):
        assert by_path[path].high >= 1.2 * by_path[path].low, path


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_is_found_by_its_own_device_names(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    for device_name in profile.device_names:
        assert load_profile(device_name).name == name


@pytest.mark.parametrize(
    ("device_name", "profile"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("H100", "h100"),
        ("AMD Instinct MI300X VF", "mi300x"),
        ("AMD Instinct MI210", "mi210"),
    ],
)
def test_a_real_device_name_gives_the_closest_profile(device_name: str, profile: str) -> None:
    assert load_profile(device_name).name == profile


@pytest.mark.parametrize("name", ["", "gtx1080", "NVIDIA A10G", "AMD Instinct MI300A", "common"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_profile(name)
    assert all(known in str(caught.value) for known in ("h100", "a100", "t4", "rtx4090"))


def test_a_newer_gpu_of_the_same_chip_differs_in_memory_only_where_it_should() -> None:
    h100, h200 = load_profile("h100"), load_profile("h200")
    assert h200.memory_gb_s.mid > 1.4 * h100.memory_gb_s.mid
    assert h200.math_tflops.bf16.mid == h100.math_tflops.bf16.mid


def test_profiles_estimate_and_trace_never_import_torch() -> None:
    code = (
        "import sys, graphdoctor.estimate.gpus, graphdoctor.estimate, graphdoctor.trace\n"
        "graphdoctor.estimate.gpus.load_profile('h100')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_gpu_may_be_anything_from_the_lowest_to_the_highest_of_the_known() -> None:
    unknown, known = unknown_profile(), [load_profile(name) for name in profile_names()]
    assert unknown.device_names == ()
    for path in (
        "launch_us",
        "node_gap_us",
        "host_us.operator",
        "memory_share.stream",
        "memory_gb_s",
    ):
        every = [attrgetter(path)(profile) for profile in known]
        found = attrgetter(path)(unknown)
        assert found.low == min(figure.low for figure in every)
        assert found.high == max(figure.high for figure in every)
        assert sorted(figure.mid for figure in every)[len(every) // 2] == found.mid
        assert found.source.startswith("assumed")
