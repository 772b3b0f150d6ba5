"""Find and read the settings of a project, with the overrides of the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphdoctor.check.settings.settings import Settings, parse
from graphdoctor.values.errors import UsageError
from graphdoctor.values.file_kinds import refuse_saved

OWN_FILE = "graphdoctor.toml"
SHARED_FILE = "pyproject.toml"
SECTION = "tool.graphdoctor"


@dataclass(frozen=True, slots=True)
class Project:
    """`root` is the folder that all paths of the settings start from; `source` names the file."""

    root: Path
    settings: Settings
    source: str

    @property
    def baseline_path(self) -> Path:
        return self.root / self.settings.baseline


def load(start: Path, *, overrides: Sequence[str] = (), isolated: bool = False) -> Project:
    """The settings that hold in `start`: of the nearest folder upwards that has some.

    Each override is `key=value`, or the path of a file like graphdoctor.toml that is taken instead.
    Raises UsageError.
    """
    found = None if isolated else _find(start.resolve())
    for text in overrides:
        if _is_file(text):
            found = Path(text).resolve()
    table = _section(found) if found is not None else {}
    for text in overrides:
        if not _is_file(text):
            table = _merged(table, _override(text))
    if found is not None:
        root = found.parent
        source = f"[{SECTION}] of {found.name}" if found.name == SHARED_FILE else found.name
    else:
        root, source = repository_of(start.resolve()), "no file"
    where = source if found is not None else "the command line's --config"
    return Project(root, parse(table, where=where), source)


def repository_of(folder: Path) -> Path:
    """The nearest folder upwards with .git in it, which in a work tree is a file; else the folder itself."""
    for parent in (folder, *folder.parents):
        if (parent / ".git").exists():
            return parent
    return folder


def read_toml(path: Path) -> dict[str, object]:
    """A TOML file's table. Raises UsageError."""
    refuse_saved(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text, which TOML must be") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


def _find(start: Path) -> Path | None:
    for folder in _upwards(start):
        if (folder / OWN_FILE).is_file():
            return folder / OWN_FILE
        shared = folder / SHARED_FILE
        if shared.is_file() and _tool(read_toml(shared)) is not None:
            return shared
    return None


def _upwards(start: Path) -> Iterator[Path]:
    """Up to the repository's own folder: settings of a project further up mean nothing here."""
    last = repository_of(start)
    for folder in (start, *start.parents):
        yield folder
        if folder == last:
            return


def _tool(table: Mapping[str, object]) -> dict[str, object] | None:
    tools = table.get("tool")
    section = tools.get("graphdoctor") if isinstance(tools, dict) else None
    if section is not None and not isinstance(section, dict):
        raise UsageError(f"{SHARED_FILE}: [{SECTION}] must be a table, not {section!r}")
    return section


def _section(path: Path) -> dict[str, object]:
    table = read_toml(path)
    return (_tool(table) or {}) if path.name == SHARED_FILE else table


def _is_file(text: str) -> bool:
    return "=" not in text or Path(text).is_file()


def _override(text: str) -> dict[str, object]:
    """One `key=value`; a value that is not TOML is a text, so that quotes may be left out."""
    key, _, value = text.partition("=")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        quoted = value.strip().replace("\\", "\\\\").replace('"', '\\"')
    try:
        return tomllib.loads(f'{key} = "{quoted}"')
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--config {text!r} is not key=value: {error}") from error


def _merged(table: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """`over` wins; tables are merged key by key, and a dash in a key is as good as a _."""
    merged = dict(table)
    for key, value in over.items():
        known = next((one for one in merged if _plain(one) == _plain(key)), key)
        old = merged.get(known)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[known] = _merged(old, value)
        else:
            merged[known] = value
    return merged


def _plain(key: str) -> str:
    return key.replace("-", "_")
