"""The tab GRAPHDOCTOR of TensorBoard: what its routes serve, and how it looks in a browser without a network."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard import program
from tensorboard.plugins.core import core_plugin
from werkzeug.test import Client

from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.tensorboard.plugin import GraphDoctorPlugin
from tests.support.browser import browser
from tests.support.reports import COMPARED

__all__ = ["browser"]
EVENTS = 100_000


def spans(count: int) -> bytes:
    """Ten names on two threads; each second span lies within the one before."""
    events = [
        {"ph": "X", "name": f"aten::op{i % 10}", "pid": 1, "tid": i // 2 % 2, "ts": 10 * (i // 2) + i % 2,
         "dur": 8 - 6 * (i % 2)}
        for i in range(count)
    ]  # fmt: skip
    return gzip.compress(json.dumps({"traceEvents": events}).encode())


PLAIN = gzip.decompress(spans(8))
CUT = "The trace is cut short:"


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    run = tmp_path / "logs/eager"
    run.mkdir(parents=True)
    (run / "graphdoctor.json").write_text(written_as("json", COMPARED, Look()))
    (run / "a.perfetto.json.gz").write_bytes(spans(8))
    return tmp_path / "logs"


def ask(logdir: Path, route: str, **query: str) -> Any:
    apps = GraphDoctorPlugin(SimpleNamespace(logdir=str(logdir))).get_plugin_apps()
    return Client(apps[route]).get("/", query_string=query)


def test_runs_are_folders_with_a_report_or_a_trace(logdir: Path) -> None:
    (logdir / "empty").mkdir()
    assert ask(logdir, "/runs").json == [{"name": "eager", "report": True, "trace": True}]
    assert not GraphDoctorPlugin(SimpleNamespace(logdir=str(logdir / "empty"))).is_active()


def test_report_is_the_page_with_its_own_policy(logdir: Path) -> None:
    answer = ask(logdir, "/report", run="eager")
    assert answer.status_code == 200 and COMPARED.target.name in answer.text
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy and "allow-same-origin" not in policy


@pytest.mark.parametrize("run", ["../outside", "/", "..", "eager/../../outside", ""])
def test_nothing_outside_of_the_folder_is_served(logdir: Path, run: str) -> None:
    outside = logdir.parent / "outside"
    outside.mkdir()
    (outside / "graphdoctor.json").write_bytes((logdir / "eager/graphdoctor.json").read_bytes())
    (logdir / "link").mkdir()
    (logdir / "link/graphdoctor.json").symlink_to(outside / "graphdoctor.json")
    assert ask(logdir, "/report", run=run).status_code == 404
    assert ask(logdir, "/report", run="link").status_code == 404


def test_pages_and_scripts_of_the_folder_are_refused_as_reports(logdir: Path) -> None:
    (logdir / "eager/graphdoctor.json").write_text("<script>alert(1)</script>")
    answer = ask(logdir, "/report", run="eager")
    assert answer.status_code == 422 and answer.mimetype == "text/plain"


def test_spans_that_nest_get_rows_of_their_own(logdir: Path) -> None:
    answer = ask(logdir, "/trace", run="eager").json
    assert [len(row["spans"]) // 3 for row in answer["rows"]] == [2, 2, 2, 2]
    assert answer["rows"][1]["spans"][:2] == [1, 2]


@pytest.mark.parametrize(
    ("content", "events", "problem"),
    [
        (gzip.compress(PLAIN)[:-9], 8, ""),
        (gzip.compress(PLAIN[:-20]) + gzip.compress(PLAIN[-20:])[:10], 7, f"{CUT} the gzip stream does not end."),
        (gzip.compress(PLAIN[:-20]), 7, f"{CUT} its events do not end."),
        (gzip.compress(PLAIN.replace(b"op3", b"op\x073")), 8, ""),
        (gzip.compress(PLAIN.removeprefix(b'{"traceEvents": ')[:-1]), 8, ""),
    ],
    ids=["trailer", "packed", "plain", "control", "list"],  # gzip has the time in it
)  # fmt: skip
def test_trace_is_shown_as_far_as_it_goes(
    logdir: Path, content: bytes, events: int, problem: str
) -> None:
    """A download that broke off, a raw control character as kineto writes it, and a bare list of events."""
    (logdir / "eager/a.perfetto.json.gz").write_bytes(content)
    answer = ask(logdir, "/trace", run="eager").json
    assert sum(len(row["spans"]) // 3 for row in answer["rows"]) == events
    assert answer["problem"] == problem


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b"{")], ids=["plain", "packed"])
def test_broken_trace_is_a_sentence(logdir: Path, content: bytes) -> None:
    (logdir / "eager/a.perfetto.json.gz").write_bytes(content)
    answer = ask(logdir, "/trace", run="eager")
    assert answer.status_code == 422 and "cannot be read" in answer.text


def test_entry_point_is_declared() -> None:
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    plugins = declared["project"]["entry-points"]["tensorboard_plugins"]
    assert plugins == {"graphdoctor": "graphdoctor.reporters.tensorboard.plugin:GraphDoctorPlugin"}


def test_tensorboard_starts_without_torch() -> None:
    code = "import sys, graphdoctor.reporters.tensorboard.plugin; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tab_shows_report_and_trace_without_a_network(browser: Any, logdir: Path) -> None:
    (logdir / "eager/a.perfetto.json.gz").write_bytes(spans(EVENTS))
    board = program.TensorBoard(plugins=[core_plugin.CorePluginLoader(), GraphDoctorPlugin])
    board.configure(logdir=str(logdir), host="127.0.0.1", port=0, load_fast="false")
    url = board.launch().rstrip("/")
    context = browser.new_context(viewport={"width": 1180, "height": 900}, color_scheme="null")
    try:
        page = context.new_page()
        complaints: list[str] = []
        page.on("console", lambda said: complaints.append(f"{said.location['url']} {said.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}/data/plugin_entry.html?name=graphdoctor")
        page.wait_for_selector(f"canvas[data-events='{EVENTS}']")
        frame = page.frame_locator("iframe")
        assert COMPARED.target.name in frame.locator("body").inner_text()
        page.fill("input", "op3")
        page.press("input", "Enter")
        assert page.inner_text("p") == f"1 of {EVENTS // 10}: aten::op3"
        page.select_option("select >> nth=1", label="eager")
        page.wait_for_selector("canvas >> nth=1")
        assert all(one.startswith((url, "about:", "data:")) for one in asked)
        assert [one for one in complaints if "/favicon.ico " not in one] == []
        board_page = context.new_page()  # dark by TensorBoard's switch, in a light browser
        board_page.goto(f"{url}/?darkMode=true#graphdoctor")
        tab = board_page.frame_locator("iframe")
        tab.locator("canvas").wait_for()
        dark = "document.documentElement.style.colorScheme"
        assert tab.locator("body").evaluate(dark) == "dark"
        report = tab.frame_locator("iframe").locator("body")
        assert report.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        board_page.evaluate("document.body.classList.remove('dark-mode')")
        assert tab.locator("body").evaluate(dark) == "light"
    finally:
        context.close()
