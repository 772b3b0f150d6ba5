"""What is heard of a step that runs again."""

from __future__ import annotations

import os
import sys
from typing import Any

from graphdoctor.target.program.quiet import audited


def test_looks_at_objects_are_told_nobody_and_files_are() -> None:
    heard: list[tuple[str, tuple[Any, ...]]] = []

    with audited(lambda event, args: heard.append((event, args))):
        id(heard)
        _ = sys._getframe().f_code
        with open(os.devnull, encoding="utf-8"):
            pass
    with open(os.devnull, encoding="utf-8"):
        pass

    assert [(event, args[0]) for event, args in heard] == [("open", os.devnull)]
