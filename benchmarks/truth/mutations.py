"""Small mistakes put into the code of some rooms -> how many of them the tests of these rooms find.

    python benchmarks/truth/mutations.py --rooms trace,estimate --count 40 --seed 1 [--jobs 2] [--out OUT.jsonl]

A room may also be a part of one, a folder or a file: `record/host`, `estimate/calls.py`.

A mutation turns one comparison, changes one sign, one `not`, one `min` or one number, in a copy of the
project; then the tests in tests/<room> run there until the first that fails, those nearest to the file
first and slow ones last. A mutation that no test finds has survived. Left out are texts, annotations,
decorators, what only shapes an error's words, and the examples of rules.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import copy
import importlib.util
import json
import multiprocessing
import os
import py_compile
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("graphdoctor", "tests", "sample_models", "benchmarks", "docs", "pyproject.toml")
SECONDS = ROOT / ".pytest_cache/v/graphdoctor/seconds"  # tests/conftest.py writes it
SLOW_S = 0.3
IMPORTED_ONCE = ("torch", "numpy", "networkx", "msgspec", "hypothesis", "pytest", "rich.console")

TURNED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
OTHER_END = {"min": "max", "max": "min"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """`old` stands in the line and column of `file`, and becomes `new`."""

    room: str
    file: Path
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file.as_posix()}:{self.line}  {old}  ->  {new}"

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutations(room: str, file: Path) -> Iterator[Mutation]:
    """Each mutation of one file, which is named from the project's folder."""
    source = (ROOT / file).read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    for node in _code(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        old = source[start:end].decode(errors="replace")
        if not _is(node, old):
            continue  # Python before 3.12 does not know the places inside an f-string
        for changed in _changes(node):
            new = f"({ast.unparse(changed)})"
            yield Mutation(room, file, node.lineno, start, end, old, new)


def _is(node: ast.expr, text: str) -> bool:
    try:
        return ast.dump(ast.parse(f"({text})", mode="eval").body) == ast.dump(node)
    except SyntaxError:
        return False


def _code(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that compute: no annotation, no decorator, no words of an error."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.Raise):
            continue
        if isinstance(node, ast.Assign) and _names(node) & {"__all__", "__slots__"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (_is_of_types(child) or _is_example(child)):
                if isinstance(child, ast.expr):
                    yield child
                yield from _code(child)


def _names(node: ast.Assign) -> set[str]:
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


def _is_of_types(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.Assert)


def _is_example(node: ast.AST) -> bool:
    """A program that a rule is tried on: another one is as good."""
    return isinstance(node, ast.FunctionDef) and node.name in ("bad", "good")


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                for turned in TURNED[type(op)]:
                    changed = copy.deepcopy(node)
                    changed.ops[place] = turned()
                    yield changed
        case ast.BinOp(op=op) if type(op) in SWAPPED and not _is_text(node):
            changed = copy.deepcopy(node)
            changed.op = SWAPPED[type(op)]()
            yield changed
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=value) if type(value) in (int, float):
            yield ast.Constant(value + 1 if isinstance(value, int) else value * 2 or 1.0)
        case ast.Call(func=ast.Name(id=name)) if name in OTHER_END:
            changed = copy.deepcopy(node)
            changed.func = ast.Name(OTHER_END[name])
            yield changed


def _is_text(node: ast.BinOp) -> bool:
    """Adding or repeating texts and sequences: what is left of it raises at once."""
    sequences = (ast.JoinedStr, ast.Tuple, ast.List)
    sides = (node.left, node.right)
    return any(
        isinstance(side, sequences)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in sides
    )


def drawn(rooms: Sequence[str], count: int, seed: int) -> list[Mutation]:
    """`count` of all mutations of these rooms, at most one of each expression."""
    found: list[Mutation] = []
    for room in rooms:
        place = ROOT / "graphdoctor" / room
        files = [place] if place.is_file() else sorted(place.rglob("*.py"))
        found += [one for file in files for one in mutations(room, file.relative_to(ROOT))]
    random.Random(seed).shuffle(found)
    chosen = {(one.file, one.start, one.end): one for one in found}
    return list(chosen.values())[:count]


def nearest_tests(project: Path, room: str, file: Path) -> list[str]:
    """The tests of a room that are named after the file, then those that import it."""
    tests = sorted((project / folder_of(room)).rglob("test_*.py"))
    module = ".".join(file.with_suffix("").parts)
    named = [path for path in tests if file.stem in path.stem]
    using = [path for path in tests if module in path.read_text() and path not in named]
    return [path.relative_to(project).as_posix() for path in (*named, *using)]


def folder_of(room: str) -> str:
    return f"tests/{room.split('/')[0]}"


@dataclass(frozen=True, slots=True)
class Tree:
    """A copy of the project, in which one mutation at a time is made and tested."""

    folder: Path

    @classmethod
    def copied(cls, folder: Path) -> Tree:
        leave = shutil.ignore_patterns("__pycache__")
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=leave)
            else:
                shutil.copy(ROOT / name, folder / name)
        # By its hash, since a file may change twice within the second that bytecode knows.
        by_hash = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / "graphdoctor", quiet=1, invalidation_mode=by_hash)
        return cls(folder)

    def failing_with(
        self, mutation: Mutation, limit_s: float, *, nearest_only: bool = False
    ) -> str | None:
        """The nearest tests run by themselves: collecting a whole room takes longer than they do."""
        file = self.folder / mutation.file
        whole = file.read_bytes()
        file.write_bytes(mutation.applied(whole))
        try:
            nearest = nearest_tests(self.folder, mutation.room, mutation.file)
            found_by = self.failing(nearest, limit_s) if nearest else None
            if found_by or (nearest and nearest_only):
                return found_by
            others = (f"--ignore={path}" for path in nearest)
            return self.failing([folder_of(mutation.room), *others], limit_s)
        finally:
            file.write_bytes(whole)

    def failing(
        self, arguments: Sequence[str], limit_s: float, cache: str = "-pno:cacheprovider"
    ) -> str | None:
        """The first test that fails, in a process that has imported what is not ours."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(filter(importlib.util.find_spec, IMPORTED_ONCE)))
        process = context.Process(target=_run_tests, args=(self.folder, [cache, *arguments]))
        process.start()
        process.join(limit_s)
        if process.exitcode is None:
            os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
            return "too long"
        if process.exitcode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return None
        said = (self.folder / "tests.log").read_text(errors="replace")
        named = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        return named[1] if named else f"exit code {process.exitcode}"


class QuickFirst:
    """Slow tests come last, in the order that they have among themselves."""

    def __init__(self) -> None:
        self.seconds = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.seconds.get(item.nodeid, 0.0) > SLOW_S)


def _run_tests(folder: Path, arguments: Sequence[str]) -> None:
    os.setsid()
    os.environ["PYTHONPATH"] = str(folder)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    with (folder / "tests.log").open("w") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())

    sys.exit(pytest.main(["-x", "-q", *arguments], plugins=[QuickFirst()]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rooms", default="trace,partition,estimate,check,proof,diagnose")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--limit-s", type=float, help="of a mutation's tests, which are known to pass as they are"
    )
    parser.add_argument(
        "--nearest-only", action="store_true", help="run no tests but those nearest to the file"
    )
    parser.add_argument("--out", type=Path, help="append what was drawn and what became of it")
    parser.add_argument("--list", action="store_true", help="only say what would be changed")
    options = parser.parse_args()
    rooms = options.rooms.split(",")
    chosen = drawn(rooms, options.count, options.seed)
    if options.list:
        print(*chosen, sep="\n")
        return
    with tempfile.TemporaryDirectory() as scratch:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(options.jobs):
            trees.put(Tree.copied(Path(scratch, str(number))))
        limits = (
            dict.fromkeys(rooms, options.limit_s) if options.limit_s else _time_limits(rooms, trees)
        )
        died: Counter[str] = Counter()
        for mutation, found_by in _examined(chosen, trees, limits, options):
            print(
                "SURVIVED" if found_by is None else "killed  ", mutation, found_by or "", flush=True
            )
            died[mutation.room] += found_by is not None
            if options.out:
                with options.out.open("a") as out:
                    out.write(_row(mutation, options.seed, found_by))
    for room, count in Counter(one.room for one in chosen).items():
        print(f"{room}: {died[room]} of {count} died (seed {options.seed})")


def _row(mutation: Mutation, seed: int, found_by: str | None) -> str:
    """A line of JSON. The commit says what the file's lines were."""
    command = ("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    head = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    row = {"room": mutation.room, "seed": seed, "commit": head, "file": mutation.file.as_posix()}
    row |= {"line": mutation.line, "old": mutation.old, "new": mutation.new}
    row |= {"survived": True} if found_by is None else {"survived": False, "found_by": found_by}
    return json.dumps(row) + "\n"


def _time_limits(rooms: Sequence[str], trees: SimpleQueue[Tree]) -> dict[str, float]:
    """The tests must pass before anything is changed; four times as long is long enough."""
    limits = {}
    tree = trees.get()
    for room in rooms:
        started = time.monotonic()
        if failing := tree.failing([folder_of(room)], 1800, f"-ocache_dir={SECONDS.parents[2]}"):
            sys.exit(f"tests/{room} fail as they are: {failing}")
        limits[room] = 30 + 4 * (time.monotonic() - started)
    trees.put(tree)
    return limits


def _examined(
    chosen: Sequence[Mutation],
    trees: SimpleQueue[Tree],
    limits: dict[str, float],
    options: argparse.Namespace,
) -> Iterator[tuple[Mutation, str | None]]:
    """Each mutation with what found it."""

    def found_by(mutation: Mutation) -> str | None:
        tree = trees.get()
        try:
            limit_s = limits[mutation.room]
            return tree.failing_with(mutation, limit_s, nearest_only=options.nearest_only)
        finally:
            trees.put(tree)

    with ThreadPoolExecutor(options.jobs) as pool:
        yield from zip(chosen, pool.map(found_by, chosen), strict=True)


if __name__ == "__main__":
    main()
