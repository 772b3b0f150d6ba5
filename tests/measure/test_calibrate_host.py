"""`calibrate --host`: factors from the least times, a profile that is read back, two seconds at most."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from graphdoctor.cli import main
from graphdoctor.estimate.gpus import figures
from graphdoctor.estimate.hosts import load_host, profile_for
from graphdoctor.measure.calibrate import host, host_text

TOOK = host._reference().took_us
TIMES = host._reference().times


def measured(factor: float, *, upper: float = 1.0) -> dict[str, host.Measured]:
    return {
        kind: host.Measured(factor * us, factor * us * upper, factor * us * upper)
        for kind, us in TOOK.items()
    }


def test_a_machine_that_takes_twice_the_reference_has_twice_its_factors() -> None:
    found = host.profile_of("a CPU", "torch 9.9", measured(2.0)).profile
    for _, figure in figures(found):
        assert figure.mid == pytest.approx(2 * TIMES.mid)
        assert (figure.low, figure.high) == pytest.approx((2 * TIMES.low, 2 * TIMES.high))
        assert "measured by graphdoctor calibrate --host on a CPU, torch 9.9" in figure.source


def test_other_work_on_the_machine_changes_no_factor_and_is_told() -> None:
    quiet = host.profile_of("a CPU", "torch 9.9", measured(1.0))
    noisy = host.profile_of("a CPU", "torch 9.9", measured(1.0, upper=3.0))
    assert noisy.profile == quiet.profile
    assert all("other work runs on this machine" in line for line in noisy.seen)
    assert not any("other work" in line for line in quiet.seen)


def test_the_least_of_many_blocks_counts() -> None:
    """A clock that every second block is held up on, by a thousand times as much."""
    now, reads = 0.0, 0

    def clock() -> float:
        nonlocal now, reads
        reads += 1
        now += 0.5 if reads % 2 == 0 else 0.0005
        return now

    found = host.timed({"python": lambda: None}, clock, 30.0)["python"]
    assert found.least_us < 600
    assert found.upper_us > 1000 * found.least_us / 2


def test_the_profile_is_read_back_and_predicts(tmp_path: Path) -> None:
    made = host.profile_of('an "EPYC"', "torch 9.9", measured(3.0))
    path = tmp_path / "host.toml"
    path.write_text(host_text(made), encoding="utf-8")
    back = load_host(str(path))
    assert back.title == 'an "EPYC"'
    plain, slow = profile_for("h200"), profile_for("h200", str(path))
    assert slow.host == 'an "EPYC"'
    assert slow.launch_us.mid == pytest.approx(plain.launch_us.mid * 3 * TIMES.mid, rel=1e-4)
    assert slow.memory_share == plain.memory_share


def test_the_command_measures_this_machine_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "here.toml"
    begin = time.perf_counter()
    assert main(["calibrate", "--host", "-o", str(path)]) == 0
    assert time.perf_counter() - begin < 30  # two seconds on a quiet machine
    said = capsys.readouterr().err
    assert said.count("times a server's") == len(host.KINDS)
    assert said.endswith(f"predict with it: graphdoctor analyze TARGET --gpu h200 --host {path}\n")
    assert all(0.01 < figure.mid < 100 for _, figure in figures(load_host(str(path))))
