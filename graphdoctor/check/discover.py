"""Find the Python files of a folder that describe a model, without running any of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from graphdoctor.check.settings.settings import TargetSettings, default_name
from graphdoctor.target.forms import FORMS, ONLY_MODULE
from graphdoctor.target.outline import Outline, outline
from graphdoctor.values.errors import GraphDoctorError, UserCodeError

_NO_SOURCES = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
_DESCRIBING = tuple(form for form in FORMS if form is not ONLY_MODULE)


class LoneFile(NamedTuple):
    """A file relative to the root, and the model classes in it."""

    file: str
    names: tuple[str, ...]


def discover(folder: Path, *, root: Path, exclude: Sequence[str] = ()) -> list[TargetSettings]:
    """A target for each file that describes one, by path; what cannot be parsed describes none."""
    found = []
    for path in python_files(folder, root=root, exclude=exclude):
        if any(form.matches(shape) for shape in _shape(path) for form in _DESCRIBING):
            entry = path.relative_to(root).as_posix()
            found.append(TargetSettings(default_name(entry), entry))
    return found


def lone_modules(folder: Path, *, root: Path) -> list[LoneFile]:
    """Files with models that do not describe their inputs, each with the names of the classes."""
    found = []
    for path in python_files(folder, root=root):
        for shape in _shape(path):
            names: list[str] = []
            for cls in shape.classes:
                has_forward = "forward" in cls.methods or {"Sequential", *names} & {*cls.bases}
                if has_forward and cls.may_be_module and "Function" not in cls.bases:
                    names.append(cls.name)
            if names and not any(form.matches(shape) for form in _DESCRIBING):
                found.append(LoneFile(path.relative_to(root).as_posix(), tuple(names)))
    return found


def python_files(folder: Path, *, root: Path, exclude: Sequence[str] = ()) -> Iterator[Path]:
    """In a fixed order; no hidden folders, no environments, nothing that a pattern excludes."""
    if folder.is_file():
        yield folder
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if _is_source(Path(parent, name)))
        for name in sorted(files):
            path = Path(parent, name)
            relative = path.relative_to(root).as_posix()
            excluded = any(fnmatch(relative, pattern) for pattern in exclude)
            if name.endswith(".py") and not excluded:
                yield path


def _is_source(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".") or folder.name in _NO_SOURCES
    return not is_hidden and not (folder / "pyvenv.cfg").exists()


def _shape(path: Path) -> Iterator[Outline]:
    """Only names that are really there count: a star import may bring in anything."""
    try:
        yield replace(outline(path), has_star_import=False)
    except (GraphDoctorError, UserCodeError):
        return
