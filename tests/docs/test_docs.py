"""The generated documentation is current, and links between documents lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from graphdoctor.pipeline import analyze_target
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.values.options import AnalyzeOptions

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("sample_models/*.md")])
PINNED_TORCH = re.search(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)


@pytest.fixture
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_documents_are_current(generate: ModuleType) -> None:
    """If not: make docs."""
    assert generate.outdated() == []


def test_outdated_superfluous_and_missing_documents_are_found_and_put_right(
    generate: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate.DOCS = tmp_path
    assert set(generate.outdated()) == set(generate.pages())
    generate.main()
    assert generate.outdated() == []
    (tmp_path / "rules" / "GD999.md").write_text("a rule that is no more")
    (tmp_path / "report.schema.json").write_text("{}")
    assert generate.outdated() == [Path("report.schema.json"), Path("rules/GD999.md")]
    generate.main()
    assert generate.outdated() == []


@pytest.mark.skipif(
    PINNED_TORCH is None or not torch.__version__.startswith(PINNED_TORCH[1]),
    reason="the README shows what the pinned torch does: others run other operators",
)
def test_the_readme_shows_what_the_demo_prints(generate: ModuleType) -> None:
    """If not: make docs."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    options = AnalyzeOptions(device="emulated")
    page = written_as(
        "terminal",
        analyze_target(str(ROOT / generate.DEMO), options, lambda doing: None),
        Look(base=str(ROOT)),
    )
    assert generate.with_demo(readme, page) == readme
    assert "error[GD111]" in readme and readme.count("\n") <= 90


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (document.parent / target).exists()] == []
