"""A project's folder of kept reports: one is taken where nothing that it depends on has changed."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import msgspec

import graphdoctor
from graphdoctor.check.cache.dependencies import (
    CannotKeep,
    Dependencies,
    Files,
    dependencies,
    environment_digest,
)
from graphdoctor.check.cache.reads import Reads
from graphdoctor.reporters.plain_json import parsed
from graphdoctor.values.errors import UsageError
from graphdoctor.values.report import Report

FOLDER = ".graphdoctor_cache"
_VERSION = 1
_UNUSED_DAYS = 30
_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This file marks the folder as a cache; see https://bford.info/cachedir/.
"""
_README = """# What graphdoctor keeps between checks

Reports of targets, with what each depends on. `graphdoctor check` analyzes a target again only if any
of that changed. Delete this folder at any time, and keep it out of version control.
"""


class Entry(msgspec.Struct, frozen=True):
    """A kept report. `key` stands for the versions and settings that it was made with."""

    version: int
    key: str
    depends_on: Dependencies
    report_json: str


class Cache:
    """The kept reports of one project, for one check. It takes and keeps only what is known to be the same."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER
        self._began_ns = time.time_ns()
        self.files = Files(root)
        self.taken = 0  # how many reports came from here
        self.not_kept: dict[str, str] = {}  # targets, and why, as a clause

    def look_up(self, name: str, job: bytes) -> Report | None:
        """The report that the job would give again; None where it has to be done."""
        entry = self.valid_entry(name, job)
        if entry is None:
            return None
        try:
            report = parsed(entry.report_json.encode(), Report, name=name)
        except UsageError:
            return None
        self.taken += 1
        with suppress(OSError):
            os.utime(self._path(name, job))
        return report

    def valid_entry(self, name: str, job: bytes) -> Entry | None:
        """What is kept of the job, as long as nothing that it depends on has changed."""
        try:
            entry = msgspec.json.decode(self._path(name, job).read_bytes(), type=Entry)
        except (OSError, msgspec.DecodeError):
            return None
        if entry.version != _VERSION or entry.key != self._key(job):
            return None
        return entry if entry.depends_on.are_as_before(self.files) else None

    def keep(self, name: str, job: bytes, report_json: str, reads: Reads) -> None:
        """Keep a report, or note why it is not kept."""
        try:
            depends_on = dependencies(reads, self.files, since_ns=self._began_ns)
        except CannotKeep as reason:
            self.not_kept[name] = str(reason)
            return
        entry = Entry(_VERSION, self._key(job), depends_on, report_json)
        try:
            self._make_folder()
            path = self._path(name, job)
            part = path.with_suffix(f".{os.getpid()}.part")
            part.write_bytes(msgspec.json.encode(entry))
            part.replace(path)
        except OSError as error:
            self.not_kept[name] = f"{FOLDER} cannot be written: {error.strerror or error}"

    def clear_unused(self) -> None:
        """Drop what no check has used for a month."""
        oldest_s = time.time() - _UNUSED_DAYS * 24 * 3600
        for path in self._folder.glob("*.*"):
            with suppress(OSError):
                if path.suffix in (".json", ".part") and path.stat().st_mtime < oldest_s:
                    path.unlink()

    def _path(self, name: str, job: bytes) -> Path:
        words = re.sub(r"[^\w.-]+", "-", name)[-60:]
        return self._folder / f"{words}-{hashlib.sha256(name.encode() + job).hexdigest()[:12]}.json"

    def _key(self, job: bytes) -> str:
        return hashlib.sha256(self._surroundings + job).hexdigest()

    @cached_property
    def _surroundings(self) -> bytes:
        """graphdoctor as it is, Python, the machine, and every package that is installed."""
        parts = (
            graphdoctor.__version__,
            _own_digest(),
            sys.version,
            platform.platform(),
            *_installed(),
            environment_digest(),
        )
        return "\0".join(parts).encode("utf-8", "surrogateescape")

    def _make_folder(self) -> None:
        """As others' caches are: ignored by git, and known as a cache to what makes backups."""
        if self._folder.is_dir():
            return
        self._folder.mkdir(parents=True)
        (self._folder / ".gitignore").write_text("# Made by graphdoctor.\n*\n", encoding="utf-8")
        (self._folder / "CACHEDIR.TAG").write_text(_TAG, encoding="utf-8")
        (self._folder / "README.md").write_text(_README, encoding="utf-8")


def _own_digest() -> str:
    """Of graphdoctor's own files: a version under development changes without its number."""
    package = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".json", ".toml"):
            digest.update(path.relative_to(package).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _installed() -> list[str]:
    """Every package with its version, as the folders that installers leave are named."""
    found: set[str] = set()
    for folder in sys.path:
        with suppress(OSError):
            names = os.listdir(folder or ".")
            found.update(name for name in names if name.endswith((".dist-info", ".egg-info")))
    return sorted(found)
