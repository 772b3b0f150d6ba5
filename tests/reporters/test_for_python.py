"""A report in Python: printed, shown in a notebook, saved and loaded."""

from __future__ import annotations

import builtins
import re
from html.parser import HTMLParser
from pathlib import Path

import IPython.display
import msgspec
import pytest

import graphdoctor
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.values.errors import UsageError
from tests.support import reports
from tests.support.checking import HOSTILE

PARTLY_SAFE, SAFE = map(graphdoctor.Report.of, (reports.PARTLY_SAFE, reports.SAFE))


def test_printing_a_report_writes_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    print(PARTLY_SAFE)
    assert capsys.readouterr().out == written_as(
        "terminal", PARTLY_SAFE, Look(base=str(Path.cwd()))
    )
    assert repr(PARTLY_SAFE).startswith("Report(")


def test_showing_one_takes_the_options_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    PARTLY_SAFE.show(all=True, frames=True)
    look = Look(base=str(Path.cwd()), show_all=True, show_frames=True)
    assert capsys.readouterr().out == written_as("terminal", PARTLY_SAFE, look)


class Elements(HTMLParser):
    """The names of elements, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_notebook_shows_the_page_and_obeys_nothing_of_the_model_s() -> None:
    report = msgspec.structs.replace(PARTLY_SAFE, reason=HOSTILE)
    html = report._repr_html_()
    shown = Elements()
    shown.feed(html)
    assert shown.names <= {"pre", "span"} and "color" in html
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", html)
    lines = [line.rstrip() for line in shown.text.rstrip("\n").split("\n")]
    assert lines == [line.rstrip() for line in str(report).split("\n")]


def test_in_a_notebook_s_kernel_a_page_is_one_text_and_not_a_display_for_each_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class ZMQInteractiveShell:
        """What rich takes for a notebook's kernel."""

    there, displayed = PARTLY_SAFE._repr_html_(), []
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setattr(IPython.display, "display", lambda *shown: displayed.append(shown))
    assert PARTLY_SAFE._repr_html_() == there
    PARTLY_SAFE.show()
    assert displayed == [] and PARTLY_SAFE.target.name in capsys.readouterr().out


def test_saved_report_is_loaded_again(tmp_path: Path) -> None:
    SAFE.save(tmp_path / "report.json")
    assert graphdoctor.Report.load(tmp_path / "report.json") == SAFE
    assert graphdoctor.Report.load(str(tmp_path / "report.json")) == SAFE


def test_file_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the report"):
        graphdoctor.Report.load(tmp_path / "missing.json")
    with pytest.raises(UsageError, match="there is no folder"):
        SAFE.save(tmp_path / "missing" / "report.json")
