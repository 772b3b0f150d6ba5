"""TensorBoard's tab GRAPHDOCTOR: the saved reports and traces of a log directory, without a network."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from graphdoctor.reporters import saved
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.tensorboard import SAVED_REPORT
from graphdoctor.trace.read.blocks import blocks, until_cut
from graphdoctor.trace.read.decode import repair
from graphdoctor.trace.read.split import in_brackets, split, structure
from graphdoctor.values.errors import GraphDoctorError

# Of several copies of a trace, the one with the findings drawn in.
_TRACES = ("*.annotated.json.gz", "*.perfetto.json.gz", "*.pt.trace.json.gz", "*.pt.trace.json")
# Pages say it first, before any text of a report.
_POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]*)"')
_HERE = Path(__file__).parent


class _Event(msgspec.Struct, frozen=True):
    """A span of a trace, in microseconds; other events have no duration."""

    ph: str = ""
    name: str = ""
    pid: int | float | str = ""
    tid: int | float | str = ""
    ts: float = 0.0
    dur: float = 0.0


class _Trace(msgspec.Struct, frozen=True):
    traceEvents: list[_Event]


class GraphDoctorPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """Nothing in the log directory is run: pages are written from saved reports, traces are read as data."""

    plugin_name = "graphdoctor"

    def __init__(self, context: Any) -> None:
        self._logdir = Path(context.logdir).resolve() if context.logdir else None

    def get_plugin_apps(self) -> Mapping[str, Callable[..., Any]]:
        """What is served below /data/plugin/graphdoctor."""
        routes = {
            "/index.js": self._script,
            "/style.css": self._style,
            "/runs": self._runs,
            "/report": self._report,
            "/trace": self._trace,
        }
        return {route: wrappers.Request.application(serve) for route, serve in routes.items()}

    def is_active(self) -> bool:
        """Whether there is a run to show."""
        return next(self._found(), None) is not None

    def frontend_metadata(self) -> Any:
        """The module that TensorBoard loads for the tab."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="GRAPHDOCTOR")

    def _found(self) -> Iterator[tuple[str, Path | None, Path | None]]:
        """The runs: name, saved report and trace. Links that leave the log directory are no files of it."""
        if self._logdir is None:
            return
        for folder, folders, _ in os.walk(self._logdir):
            folders.sort()
            place = Path(folder)
            report = self._inside([place / SAVED_REPORT])
            trace = self._inside([one for kind in _TRACES for one in sorted(place.glob(kind))[-1:]])
            if report or trace:
                yield place.relative_to(self._logdir).as_posix(), report, trace

    def _inside(self, files: list[Path]) -> Path | None:
        root = self._logdir
        return next(
            (
                file
                for file in files
                if root and file.is_file() and file.resolve().is_relative_to(root)
            ),
            None,
        )

    def _of_run(self, request: wrappers.Request) -> tuple[Path | None, Path | None]:
        """Only names that are listed are known, so that no path from outside is ever opened."""
        name = request.args.get("run", "")
        return next(((report, trace) for run, report, trace in self._found() if run == name), (None, None))  # fmt: skip

    def _script(self, request: wrappers.Request) -> Any:
        return http_util.Respond(request, (_HERE / "index.js").read_bytes(), "text/javascript")

    def _style(self, request: wrappers.Request) -> Any:
        return http_util.Respond(request, (_HERE / "style.css").read_bytes(), "text/css")

    def _runs(self, request: wrappers.Request) -> Any:
        runs = [
            {"name": name, "report": report is not None, "trace": trace is not None}
            for name, report, trace in self._found()
        ]
        return http_util.Respond(request, runs, "application/json")

    def _report(self, request: wrappers.Request) -> Any:
        file, _ = self._of_run(request)
        if file is None:
            return http_util.Respond(request, "No report of this run.", "text/plain", code=404)
        try:
            page = saved.page_of([(file.name, file.read_bytes())], Look())
        except (GraphDoctorError, OSError) as error:
            return http_util.Respond(request, str(error), "text/plain", code=422)
        # TensorBoard asks for the page's own policy as a header: its scripts by their digests, and no address.
        # It warns of a `sandbox` there, which the frame has.
        policy = _POLICY.search(page)
        allowed = html.unescape(policy[1]) if policy else "default-src 'none'"
        headers = {
            "Content-Security-Policy": allowed,
            "X-Content-Type-Options": "nosniff",
        }
        return wrappers.Response(page, mimetype="text/html", headers=headers)

    def _trace(self, request: wrappers.Request) -> Any:
        _, file = self._of_run(request)
        if file is None:
            return http_util.Respond(request, "No trace of this run.", "text/plain", code=404)
        try:
            events, problem = _events(file)
        except (GraphDoctorError, msgspec.MsgspecError) as error:
            message = f"{file.name} cannot be read: {error}"
            return http_util.Respond(request, message, "text/plain", code=422)
        return http_util.Respond(
            request, {**rows_of(events), "problem": problem}, "application/json"
        )


def _events(file: Path) -> tuple[list[_Event], str]:
    """The events as far as the file goes, and a sentence where it does not reach to their end."""
    problems: list[str] = []
    content = b"".join(
        bytes(block) for block in until_cut(blocks(file), file.name, problems.append)
    )
    try:
        return msgspec.json.decode(content, type=_Trace).traceEvents, ""
    except msgspec.MsgspecError:
        *_, end = split([content], file.name)
    text = repair(end.content)
    found = structure(text)
    if found.list_end is None:
        problems = problems or ["its events do not end"]
    whole = in_brackets(text[: found.last_event if problems else found.list_end])
    problem = f"The trace is cut short: {problems[0]}." if problems else ""
    return msgspec.json.decode(whole, type=list[_Event]), problem


def rows_of(events: list[_Event]) -> dict[str, list[Any]]:
    """Spans as rows in which no two overlap, in the order of begin: what a canvas draws from left to right."""
    spans = sorted((one for one in events if one.ph == "X"), key=lambda one: (one.ts, -one.dur))
    names: dict[str, int] = {}
    threads: dict[tuple[str, str], list[dict[str, Any]]] = {}
    first = spans[0].ts if spans else 0.0
    for span in spans:
        rows = threads.setdefault((str(span.pid), str(span.tid)), [])
        start = span.ts - first
        row = next((one for one in rows if one["end"] <= start), None)
        if row is None:
            row = {"thread": f"{span.pid} / {span.tid}", "end": 0.0, "spans": []}
            rows.append(row)
        row["end"] = start + span.dur
        row["spans"] += [start, span.dur, names.setdefault(span.name, len(names))]
    return {"names": list(names), "rows": [row for rows in threads.values() for row in rows]}
