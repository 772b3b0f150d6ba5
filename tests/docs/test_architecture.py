"""The house stands as docs/architecture.md draws it."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import grimp
import networkx as nx
import pytest

from graphdoctor.reporters.formats import FORMATS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "graphdoctor"
PAGES = (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md")


def test_the_top_of_the_package_has_few_entries_and_no_loose_module() -> None:
    entries = [path for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    loose = {path.name for path in entries if path.suffix == ".py"}
    assert len(entries) <= 25
    assert loose == {"__init__.py", "__main__.py"}


def test_no_rooms_use_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("graphdoctor")
    rooms: nx.DiGraph[str] = nx.DiGraph()
    for importer in graph.modules - {"graphdoctor"}:
        for imported in graph.find_modules_directly_imported_by(importer) - {"graphdoctor"}:
            here, there = importer.split(".")[1], imported.split(".")[1]
            if here != there:
                rooms.add_edge(here, there)
    assert rooms.number_of_edges() > 40
    assert [sorted(circle) for circle in nx.simple_cycles(rooms)] == []


@pytest.mark.parametrize("room", ["device", "reporters", "values"])
def test_no_modules_of_a_room_import_each_other_in_a_circle(room: str) -> None:
    """Imports for type checkers and those inside functions count, and what the list of formats loads."""
    graph = grimp.build_graph("graphdoctor")
    modules: nx.DiGraph[str] = nx.DiGraph()
    for row in FORMATS:
        modules.add_edge("graphdoctor.reporters.formats", f"graphdoctor.reporters.{row.module}")
    for importer in graph.find_descendants(f"graphdoctor.{room}"):
        for imported in graph.find_modules_directly_imported_by(importer):
            if imported.startswith(f"graphdoctor.{room}."):
                modules.add_edge(importer, imported)
    assert modules.number_of_edges() > 40
    assert [sorted(circle) for circle in nx.simple_cycles(modules)] == []


def test_only_devices_know_where_a_process_meets_other_ranks() -> None:
    """All else gets it from the device of its step, where a test can pass another."""
    files = {
        str(path.relative_to(PACKAGE)): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")
    }
    taking = {name for name, text in files.items() if "meeting_of_process" in text}
    assert taking == {"device/observe/meeting.py", "device/emulated/device.py", "device/real.py"}


def test_values_load_nothing_by_name() -> None:
    """The circles above are then all that there are: a value imports no room, not even late."""
    files = sorted((PACKAGE / "values").glob("*.py"))
    assert files
    assert [path.name for path in files if "import_module" in path.read_text("utf-8")] == []


def test_no_file_name_stands_three_times() -> None:
    names = [path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(name for name in set(names) if names.count(name) > 2) == []


def test_the_package_is_a_plain_module_and_its_pipeline_imports_quietly() -> None:
    """No compiler, no question to CUDA, no word, and nothing else of the process changed."""
    code = """
import random, sys, types
import graphdoctor
assert type(graphdoctor) is types.ModuleType
assert "torch" not in sys.modules
import torch
path, state = list(sys.path), random.getstate()
import graphdoctor.pipeline
import graphdoctor.strategies.own_process  # of what a strategy's process imports before its gate, the same holds
assert graphdoctor.analyze is graphdoctor.pipeline.analyze
assert sys.path == path and random.getstate() == state
assert not torch.cuda.is_initialized()
for compiler in ("torch._dynamo", "torch._inductor", "torch.utils.cpp_extension"):
    assert compiler not in sys.modules, compiler
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_test_file_lies_in_the_folder_of_the_room_that_it_tests() -> None:
    """Or of docs, for what is about the repository itself, or of contract, for what it promises."""
    rooms = {path.stem for path in PACKAGE.iterdir()} | {"docs", "contract"}
    files = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    assert files
    assert [str(file) for file in files if file.parts[0] not in rooms] == []


def test_the_picture_of_the_rooms_names_each_of_them_and_no_other() -> None:
    picture = (
        PAGES[0].read_text(encoding="utf-8").partition("graphdoctor/\n")[2].partition("tests/")[0]
    )
    drawn = re.findall(r"^  (\w+)/ ", picture, re.MULTILINE)
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert sorted(drawn) == sorted(rooms)


def test_the_census_names_each_folder_with_code_and_what_needs_it() -> None:
    text = (ROOT / "docs" / "census.md").read_text(encoding="utf-8")
    rows = [row.strip("|").split("|") for row in text.splitlines() if row.startswith("| `")]
    named = [name for room, *_ in rows for name in re.findall(r"`([\w/]+)/`", room)]
    folders = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.glob("*/**/*.py")}
    assert sorted(named) == sorted(folders)
    assert all(len(row) == 3 and row[2].strip() for row in rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_for_contributors_names_is_there(page: Path) -> None:
    """Whole, or as the end of a path: "emulated/streams.py"."""
    words = re.split(r"[\s`,;:()]+", page.read_text(encoding="utf-8"))
    named = {
        word for word in words if re.fullmatch(r"[\w.-][\w./-]*(/|\.(py|md|json|toml|txt))", word)
    }
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in _NOT_OURS]
    there = [f"/{path.relative_to(ROOT)}{'/' * path.is_dir()}" for path in ROOT.iterdir()]
    for folder in folders:
        there += [f"/{path.relative_to(ROOT)}{'/' * path.is_dir()}" for path in folder.rglob("*")]
    assert len(named) > 30
    assert [name for name in named if not any(one.endswith(f"/{name}") for one in there)] == []


_NOT_OURS = {".git", ".venv", "node_modules"}


def test_what_the_benchmarks_take_from_the_package_is_there() -> None:
    """They run for minutes, and on a GPU: no other test would tell that a name has gone."""
    taken = 0
    for path in (ROOT / "benchmarks").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("graphdoctor"):
                module = importlib.import_module(node.module or "")
                for name in node.names:
                    taken += 1
                    is_module = (
                        importlib.util.find_spec(f"{node.module}.{name.name}")
                        if hasattr(module, "__path__")
                        else None
                    )
                    assert hasattr(module, name.name) or is_module, (
                        f"{path.name}: {node.module}.{name.name}"
                    )
    assert taken > 100
