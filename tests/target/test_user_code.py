"""Failing code of the user's -> their own frames, and none of ours or Python's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphdoctor.target.resolve import import_module, run_file
from graphdoctor.target.user_code import user_code
from graphdoctor.values.errors import UserCodeError


def test_failed_import_shows_the_user_s_frames_only(tmp_path: Path) -> None:
    path = tmp_path / "net_that_imports.py"
    path.write_text("import json.nothing_here")
    with pytest.raises(UserCodeError) as caught:
        run_file(path)
    places = [line for line in caught.value.frames.splitlines() if "File " in line]
    assert places == [f'  File "{path}", line 1, in <module>']


def test_an_error_of_one_line_without_frames_is_said_once() -> None:
    with pytest.raises(UserCodeError, match=r"failed: ValueError: Empty module name$") as caught:
        import_module("")
    assert caught.value.frames == ""


def test_a_long_text_is_shown_whole_once(tmp_path: Path) -> None:
    """Below the sentence, which has its beginning."""
    path = tmp_path / "net_that_lists.py"
    path.write_text("raise ValueError('expected one of ' + 'a ' * 200 + 'but found none')")
    with pytest.raises(UserCodeError, match=r"one of a .* \.\.\. \(net_that") as caught:
        run_file(path)
    assert "found none" not in str(caught.value) and "found none" in caught.value.frames
    assert len(str(caught.value).splitlines()[0]) < 300


def test_an_iterator_that_ran_out_is_said_to_be_one() -> None:
    with pytest.raises(UserCodeError, match="let it take its batch as an argument"), user_code("x"):
        next(iter(()))


def test_torch_s_own_frames_are_shown_where_the_user_has_none() -> None:
    with pytest.raises(UserCodeError) as caught, user_code("the step"):
        torch.nn.Linear(2, 2)(torch.ones(3))
    assert "torch" in caught.value.frames and "graphdoctor/target" not in caught.value.frames
