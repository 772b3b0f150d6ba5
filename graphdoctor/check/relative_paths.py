"""Write the paths in a report relative to the project, equal in every checkout."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from graphdoctor.check.settings.files import repository_of
from graphdoctor.values.escape import with_texts
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Location, python_folders
from graphdoctor.values.report import Report

LIBRARIES = "site-packages/"
PYTHON = "python/"


class RelativePaths:
    """The project's folder, and the repository's, which the paths in machine formats start from."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.repository = repository_of(self.root)
        self._prefixes = _prefixes(self.root, Path(os.path.abspath(root)))

    @property
    def prefix(self) -> str:
        """What leads from the repository to the project: "" or "packages/model/"."""
        relative = self.root.relative_to(self.repository).as_posix()
        return "" if relative == "." else f"{relative}/"

    def text(self, text: str) -> str:
        """The text without this machine's folders."""
        for folder, name in self._prefixes:
            text = folder.sub(lambda _, name=name: name, text)  # type: ignore[misc]
        return text

    def report(self, report: Report) -> Report:
        """The report without this machine's folders, in all of its texts."""
        return msgspec.convert(with_texts(msgspec.to_builtins(report), self.text), Report)


def is_inside(path: str) -> bool:
    """Whether a path, as `RelativePaths` writes it, is a file of the project itself."""
    return (
        bool(path)
        and not path.startswith((LIBRARIES, PYTHON, "<", "../"))
        and not (os.path.isabs(path) or (len(path) > 1 and path[1] == ":"))
    )


def nearest_place(finding: Finding, *, otherwise: str) -> Location:
    """The finding's line, or that of the nearest caller in the project; else the target's file."""
    frames = ([finding.location] if finding.location is not None else []) + [*finding.stack]
    inside = (frame for frame in frames if is_inside(frame.file))
    return next(inside, Location(otherwise, 1))


def _prefixes(root: Path, named: Path) -> list[tuple[re.Pattern[str], str]]:
    """Folders of this machine and what stands for them, longest first: one may hold another."""
    found = dict.fromkeys(python_folders("purelib", "platlib"), LIBRARIES)
    for folder in python_folders("stdlib"):
        found.setdefault(folder, PYTHON)
    for project in (root, named):
        found.setdefault(str(project).rstrip(os.sep) + os.sep, "")
    found.pop(os.sep, None)  # a project in the root folder: its paths stay as they are
    longest_first = sorted(found.items(), key=lambda pair: (-len(pair[0]), pair))
    # Only where a path begins: the same names may occur within another one.
    return [
        (re.compile(rf"(?<![\w./\\-]){re.escape(folder)}"), name) for folder, name in longest_first
    ]
