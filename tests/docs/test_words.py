"""The check of retired words finds them in literals and pages, and fails for each."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def words() -> ModuleType:
    spec = importlib.util.spec_from_file_location("words", ROOT / "docs/words.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_literals_and_pages_are_read_and_docstrings_and_code_are_not(
    words: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for folder in ("graphdoctor/room", "docs", "skills"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "graphdoctor/room/a.py").write_text('"""Told."""\nX = f"asks {1}"\n# stood\n')
    (tmp_path / "docs/page.md").write_text("text `told`\n\n```\ntold\n```\nNobody.\n")
    (tmp_path / "README.md").write_text("The bytes of a file.\n")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    found = [*words.places()]
    assert found == [
        ("graphdoctor/room/a.py", 2, "asks"),
        ("docs/page.md", 6, "nobody"),
    ]
    assert words.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        "graphdoctor/room/a.py:2: retired word 'asks'",
        "docs/page.md:6: retired word 'nobody'",
    ]
