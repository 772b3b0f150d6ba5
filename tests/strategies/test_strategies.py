"""The list of strategies: documented, printable, and fit to be sent to other processes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphdoctor import strategies as strategies_package
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.strategies import choice
from graphdoctor.strategies.modules import Modules
from tests.support.strategy_rows import (
    a_session,
)


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


def test_every_strategy_can_be_sent_to_a_process_of_its_own() -> None:
    for strategy in strategies_package.STRATEGIES:
        assert pickle.loads(pickle.dumps(strategy)).name == strategy.name
