"""Writes the baseline and the reports of all tests of a run once, also with pytest-xdist."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec
import pytest

from graphdoctor.check.baseline import Accepted, Baseline, Entry, make, read, render
from graphdoctor.check.gate import merged
from graphdoctor.check.settings.files import Project, load
from graphdoctor.reporters.files import check_writable, save
from graphdoctor.reporters.formats import names_of, written_as
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import writable
from graphdoctor.values.check import Check
from graphdoctor.values.errors import UsageError
from graphdoctor.values.spelling import meant


class CheckedTest(msgspec.Struct, frozen=True):
    """One check of one test, with what a baseline would accept of it."""

    check: Check
    entries: tuple[Entry, ...]
    accepted: Accepted | None


class Session:
    """One run of pytest, or one worker's part of it. `written` are lines for the terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tests: list[CheckedTest] = []
        self.written: list[str] = []

    @property
    def is_updating(self) -> bool:
        return bool(self._config.getoption("--graphdoctor-update"))

    @cached_property
    def project(self) -> Project:
        """The settings of the project that is tested, with the options of pytest on top."""
        try:
            project = load(self._config.rootpath)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        device = self._config.getoption("--graphdoctor-device")
        if device is None:
            return project
        return replace(project, settings=replace(project.settings, device=device))

    @cached_property
    def baseline(self) -> Baseline:
        try:
            return read(self.project.baseline_path)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error

    def add(self, test: CheckedTest) -> None:
        self._tests.append(test)

    def packed(self) -> bytes:
        """Everything so far, to be sent from a worker."""
        return msgspec.json.encode(writable(msgspec.to_builtins(self._tests)))

    def take(self, packed: bytes) -> None:
        """What a worker sent."""
        tests = msgspec.convert(msgspec.json.decode(packed), list[CheckedTest], strict=False)
        self._tests += tests

    def check_reports(self) -> None:
        """Raise pytest.UsageError, before any test runs, for a report that could not be written."""
        formats = names_of("Check")
        for name, path in self._reports():
            if name not in formats:
                raise pytest.UsageError(
                    f"--graphdoctor-report: {name!r} is none of {', '.join(formats)}"
                    f"{meant(name, formats)}"
                )
            try:
                check_writable(path)
            except UsageError as error:
                raise pytest.UsageError(f"--graphdoctor-report: {error}") from error

    def finish(self) -> None:
        """Write what was asked for."""
        if self.is_updating and self._tests:
            save(render(self._updated()), self.project.baseline_path)
            self.written.append(f"updated {self.project.settings.baseline}")
        if not self._reports():
            return
        check = merged([test.check for test in self._tests], self.project)
        for name, path in self._reports():
            save(written_as(name, check, Look(show_all=True)), path)
            self.written.append(f"wrote {path}")

    def _updated(self) -> Baseline:
        """The old baseline with the entries of the tests that ran replaced."""
        names = {test.accepted.target for test in self._tests if test.accepted is not None}
        old = self.baseline
        entries: Iterable[Entry] = (entry for entry in old.entries if entry.target not in names)
        kept = [one for name, one in old.targets.items() if name not in names]
        new = [test.accepted for test in self._tests if test.accepted is not None]
        found = [entry for test in self._tests for entry in test.entries]
        return make([*entries, *found], [*kept, *new])

    def _reports(self) -> list[tuple[str, Path]]:
        texts: list[str] = self._config.getoption("--graphdoctor-report")
        split = [text.partition("=") for text in texts]
        return [(name, self._config.invocation_params.dir / path) for name, _, path in split]
