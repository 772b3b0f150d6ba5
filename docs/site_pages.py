"""A hook of mkdocs: pages lie in the site where they lie in the repository, so that their links hold in both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = (
    "*.md",
    "docs/**/*.md",
    "sample_models/README.md",
    "sample_programs/README.md",
    "benchmarks/README.md",
)
SCRIPTS = ("docs/iframe-worker.js",)
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s:]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put each rule below its index."""
    rules = next(entry["Rules"] for entry in config.nav or () if "Rules" in entry)
    rules += sorted(path for path in _pages() if re.fullmatch(r"docs/rules/GD\d+\.md", path))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The theme's files, the pages, and what these link to."""
    for file in [*files]:
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for path in dict.fromkeys([*_pages(), *_linked(), *SCRIPTS]):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_content(html: str, **_: object) -> str:
    """A bar in a cell of a table, which GitHub wants written as \\|, as a bar."""
    return _CELL.sub(lambda cell: cell.group().replace("\\|", "|"), html)


def _pages() -> list[str]:
    found = (path for pattern in PAGES for path in ROOT.glob(pattern))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def _linked() -> Iterator[str]:
    """Files other than pages that pages link to: pictures, schemas, data, samples."""
    for page in _pages():
        folder = (ROOT / page).parent
        for target in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            file = (folder / target).resolve()
            if file.suffix != ".md" and file.is_file():
                yield file.relative_to(ROOT).as_posix()
