"""A program's steps as one HTML file: the same from a saved report, each step's own page inside."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest
from msgspec.structs import replace

from graphdoctor.cli import main
from graphdoctor.reporters import program_page
from graphdoctor.reporters.analysis import html
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import written
from graphdoctor.reporters.saved import page_of
from graphdoctor.values.locations import Lines
from graphdoctor.values.program import HostWait, Patch
from tests.support.checking import HOSTILE
from tests.support.parsed import Parsed
from tests.support.reports import COMPARED, SAFE, at, of_program, step_of


def page(*steps, **changes) -> Parsed:
    return Parsed(html.render_program(replace(of_program(*steps), **changes), Look()))


def frames(shown: Parsed) -> list[str]:
    return [values["srcdoc"] for tag, values in shown.elements if tag == "iframe"]


def test_each_step_is_a_row_and_its_own_page_is_inside() -> None:
    left_out = replace(step_of(None), name="c.py:3", reason="It runs on the CPU.")
    late = replace(left_out, name="d.py:4", is_reached=False)
    shown = page(step_of(COMPARED), step_of(SAFE), left_out, late)
    assert frames(shown) == [written_as("html", one, Look()) for one in (COMPARED, SAFE)]
    assert "NOT DIAGNOSED" in shown.text and "It runs on the CPU." in shown.text
    assert "NOT REACHED" in shown.text
    ids = shown.all_of("id")
    assert len(ids) == len(set(ids)) and {target[1:] for target in shown.all_of("href")} <= set(ids)


def test_what_to_change_and_the_waits_between_steps_are_told() -> None:
    waiting = replace(step_of(SAFE), between=(HostWait(at(9), "aten._local_scalar_dense", 1.0),))
    patch = Patch(
        "same results", "--- a/t.py\n+++ b/t.py\n+model = 1\n", "/repo", "it prints the same."
    )
    text = page(waiting, patch=patch).text
    assert "+model = 1" in text and "Tried: it prints the same." in text
    assert "aten._local_scalar_dense, once per step" in text
    captured = replace(waiting, captured=(Lines(at(9).file, 9, 9),))
    assert "aten._local_scalar_dense" not in page(captured, patch=patch).text


def test_code_in_sentences_and_rows_of_the_diff_are_marked_as_such() -> None:
    patch = Patch(
        "not tried", "--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-old = 1\n+new = 1\n", "/repo", ""
    )
    step = replace(step_of(replace(SAFE, reason="`loss.item()` waits.")), change="replay `model`")
    text = html.render_program(replace(of_program(step), patch=patch), Look())
    outside = text.partition("<iframe")[0]
    assert "<code>loss.item()</code> waits." in outside and "replay <code>model</code>." in outside
    assert '<span class="added">+new = 1</span>' in outside
    assert '<span class="removed">-old = 1</span>' in outside
    assert '<span class="dim">--- a/t.py</span>' in outside and "`" not in Parsed(outside).text


def test_a_program_without_steps_has_a_page_that_says_so() -> None:
    shown = page(notes=("No step was seen that repeats.",))
    assert "No step was seen that repeats." in shown.text and not frames(shown)


def test_hostile_text_makes_no_element_and_cannot_leave_its_frame() -> None:
    hostile = replace(step_of(replace(SAFE, reason=HOSTILE)), name=HOSTILE, change=HOSTILE)
    patch = Patch("left out", HOSTILE, HOSTILE, HOSTILE)
    shown = page(hostile, command=(HOSTILE,), notes=(HOSTILE,), patch=patch)
    assert not {"script", "img", "b-x"} & {tag for tag, _ in shown.elements}
    assert "<script>alert(1)</script>" in shown.text and HOSTILE not in shown.text
    (frame,) = frames(shown)
    assert not {"img", "b-x"} & {tag for tag, _ in Parsed(frame).elements}


def test_saved_report_gives_the_same_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    report = of_program(step_of(COMPARED))
    (tmp_path / "run.json").write_text(written(report), encoding="utf-8")
    assert main(["view", str(tmp_path / "run.json"), "-o", "-"]) == 0
    assert capsys.readouterr().out.count("<iframe") == 1
    saved = written(report).encode()
    assert page_of([("run.json", saved)], Look()) == html.render_program(report, Look())


@pytest.mark.parametrize(
    ("change", "words"),
    [({"schema_version": 99}, "has run schema version 99"), ({"wall_s": "soon"}, "is not a graphdoctor run")],
)  # fmt: skip
def test_a_report_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], words: str
) -> None:
    table = json.loads(written(of_program(step_of(SAFE)))) | change
    (tmp_path / "run.json").write_text(json.dumps(table))
    assert main(["view", str(tmp_path / "run.json"), "-o", "-"]) == 2
    assert words in (said := capsys.readouterr().err) and said.count("\n") == 1


def test_run_writes_the_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.py").write_text(
        "import torch\nm = torch.nn.Linear(2, 2).cuda()\n"
        "for i in range(9):\n    m(torch.ones(1, 2, device='cuda'))\n"
    )
    file = tmp_path / "run.html"
    options = ["--isolated", "--strategies", "none", "--report", f"html={file}"]
    assert main(["run", *options, str(tmp_path / "p.py")]) == 0
    (frame,) = frames(Parsed(file.read_text(encoding="utf-8")))
    assert "SAFE" in Parsed(unescape(frame)).text


def test_what_the_terminal_says_of_changes_is_there_too() -> None:
    """The speedup now, why a step is not changed, without any diff, and which findings the change handles."""
    kept = replace(step_of(SAFE), no_change="not worth it: predicted 1.01x (1x to 1.02x)")
    text = page(kept).text
    assert "no change: not worth it: predicted 1.01x (1x to 1.02x)." in text
    assert "Speedup now" in text and program_page.figure_now(kept) in text
    patch = Patch("not tried", "--- a/t.py\n+++ b/t.py\n+model = 1\n", "/repo", "")
    cured = replace(step_of(COMPARED), change="replay the step", cured=("GD101",))
    text = page(cured, patch=patch).text
    assert "The change handles GD101: no further edit is needed for them." in text
    assert "Not tried yet." in text
    for order in program_page.orders_of(replace(of_program(cured), patch=patch), ""):
        assert order.text in text and order.command in text
