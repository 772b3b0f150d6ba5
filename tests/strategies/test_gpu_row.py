"""benchmarks/gpu/row.py, which measures the committed results: it runs with the strategies as they are now."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import msgspec
import pytest

from graphdoctor.values.speed import StrategyOutcome

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu"
if str(GPU) not in sys.path:
    sys.path.append(str(GPU))

import row  # noqa: E402


def test_a_row_is_prepared_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "row.json"
    monkeypatch.setattr(sys, "argv", ["row.py", "sample_models/gelu.py", "whole", str(out)])
    monkeypatch.chdir(GPU.parents[1])
    row.main()
    found = msgspec.json.decode(out.read_bytes())
    assert msgspec.convert(found["row"], StrategyOutcome).status == "verified"


def test_the_first_compiles_alone_and_the_others_behind_it(tmp_path: Path) -> None:
    lock, order = tmp_path / "lock", []

    def follow() -> None:
        with row.behind_the_first(lock):
            order.append("follower")

    with row.behind_the_first(lock) as let_others_go_on:
        follower = threading.Thread(target=follow)
        follower.start()
        follower.join(0.05)
        order.append("first")
        let_others_go_on()
        follower.join()
        order.append("first is timed")
    assert order == ["first", "follower", "first is timed"]


def test_others_go_on_where_the_first_ends(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), row.behind_the_first(tmp_path / "lock"):
        raise RuntimeError("the compiler crashed")
    with row.behind_the_first(tmp_path / "lock"):
        pass
