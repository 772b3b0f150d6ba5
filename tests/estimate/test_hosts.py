"""Hosts: classes with sources, files, and what another host makes of a prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.estimate import estimate, on_other_hosts
from graphdoctor.estimate.gpus import DeviceProfile, figures, load_profile
from graphdoctor.estimate.hosts import (
    host_names,
    load_host,
    on_host,
    profile_beside,
    profile_for,
    slowed,
)
from graphdoctor.values.errors import UsageError
from tests.support.builders import iteration, op, tensor

H200 = load_profile("h200")
STEP = iteration(
    op("aten.relu.default", [tensor(index, 64)], [tensor(index + 1, 64)]) for index in range(40)
)
ROOT = Path(__file__).resolve().parents[2]
HOST_FIGURES = ("launch_us", "graph_launch_us", "graph_node_launch_us", "host_us.", "call_us.")


def changed(one: DeviceProfile, other: DeviceProfile) -> dict[str, float]:
    """By how much the middle of each figure that differs has grown."""
    before = dict(figures(one))
    return {
        path: after.mid / before[path].mid
        for path, after in figures(other)
        if after.mid != before[path].mid
    }


def test_each_class_gives_bounds_around_the_middle_and_a_source() -> None:
    for name in host_names():
        for path, figure in figures(load_host(name)):
            assert 0 < figure.low <= figure.mid <= figure.high, (name, path)
            assert len(figure.source) > 20, (name, path)


def test_the_server_leaves_every_figure_as_it_is() -> None:
    assert changed(H200, profile_for("h200", "server")) == {}
    assert profile_for("h200") == H200


def test_a_slower_host_takes_longer_for_all_that_the_host_does_and_for_nothing_else() -> None:
    found = changed(H200, slowed(H200, 2.0))
    assert set(found.values()) == {2.0}
    expected = {path for path, _ in figures(H200) if path.startswith(HOST_FIGURES)}
    assert set(found) == expected


def test_a_slower_host_can_be_slowed_again() -> None:
    slow = profile_for("h200", "slow-server")
    assert slowed(slow, 2.0).launch_us.mid == pytest.approx(2 * slow.launch_us.mid)
    assert slowed(slow, 2.0).host == slow.host == "a slower server CPU"


def test_another_host_takes_the_place_of_the_one_that_a_calibration_measured() -> None:
    calibrated = load_profile(str(ROOT / "benchmarks/data/profile_h200_torch2.11.toml"))
    found = on_host(calibrated, load_host("server"))
    assert found.host_us == H200.host_us
    assert found.launch_us == H200.launch_us
    assert found.memory_share == calibrated.memory_share


def test_an_unknown_host_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"there are server, slow-server.*'server'"):
        load_host("sever")


def test_a_file_that_is_no_host_profile_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    path.write_text('name = "x"\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"host\.toml is not a host profile: .*title"):
        load_host(str(path))
    with pytest.raises(UsageError, match=r"cannot read the host profile nowhere\.toml"):
        load_host("nowhere.toml")


def test_the_speed_up_of_a_launch_bound_step_follows_the_host() -> None:
    here = estimate(STEP, H200)
    half, twice = on_other_hosts(STEP, H200)
    assert (half.times, twice.times) == (2.0, 0.5)
    assert half.eager_us == pytest.approx(2 * here.eager_us.mid, rel=0.1)
    assert half.speedup > here.speedup.mid > twice.speedup
    # Launching the graph is the host's too, so that the graph's time need not stay.
    assert half.graph_us * 1.000001 >= here.graph_us.mid >= twice.graph_us / 1.000001


def test_the_estimate_says_which_host_it_is_for() -> None:
    found = estimate(STEP, profile_for("h200", "slow-server"))
    assert found.host == "a slower server CPU"
    assert any("with a slower server CPU" in note for note in found.notes)


def test_each_end_of_a_figure_goes_with_the_same_end_of_the_host_s_factor() -> None:
    host = load_host("slow-server")
    assert host.launches.low < host.launches.mid < host.launches.high
    found, own = on_host(H200, host).launch_us, H200.launch_us
    for end in ("low", "mid", "high"):
        expected = getattr(own, end) * getattr(host.launches, end)
        assert getattr(found, end) == pytest.approx(expected)
    assert host.launches.source in found.source and own.source in found.source


def test_beside_a_gpu_predictions_are_for_it_unless_the_user_brings_a_profile(
    tmp_path: Path,
) -> None:
    assert profile_beside("NVIDIA H200", "h100").name == "h200"
    assert profile_beside("NVIDIA H200", "h100", "slow-server") == profile_for(
        "h200", "slow-server"
    )
    assert profile_beside("NVIDIA GB300", "a100").name == "a100"
    a100 = (ROOT / "graphdoctor/estimate/gpus/a100.toml").read_text()
    (tmp_path / "own.toml").write_text(a100.replace('"a100"', '"mine"', 1))
    assert profile_beside("NVIDIA H200", str(tmp_path / "own.toml")).name == "mine"
