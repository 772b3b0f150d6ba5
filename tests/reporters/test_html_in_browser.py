"""The page in a real browser without a network: quiet, reachable by keyboard, readable by everybody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from graphdoctor.reporters import trace_html
from graphdoctor.reporters.analysis import html
from graphdoctor.reporters.check.html import Dated, render_history
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.trace import read_trace
from graphdoctor.trace.explain.trace_report import explain_trace
from graphdoctor.values.program import Patch
from graphdoctor.values.report import Report
from tests.support.browser import opened
from tests.support.checking import HOSTILE, hostile_check
from tests.support.lanes import many_lanes
from tests.support.reports import COMPARED, FILE, SAFE, of_program, step_of
from tests.support.trace_stories import REAL

DRAWN = replace(COMPARED, lanes=many_lanes(400, layers=4, file=FILE))
PHONE, DESK = 390, 1180
NO_AXE = "axe-playwright-python is not installed"


def written(report: Report, folder: Path) -> Path:
    file = folder / "page.html"
    file.write_text(written_as("html", report, Look()), encoding="utf-8")
    return file


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Iterator[Any]:
    with opened(browser, written(DRAWN, tmp_path)) as one:
        yield one.page


def seen(page: Any) -> str:
    page.wait_for_timeout(60)  # the next frame draws
    return str(page.inner_text("#seen"))


@pytest.mark.parametrize(
    "report", [DRAWN, SAFE, replace(DRAWN, reason=HOSTILE)], ids=["lanes", "plain", "hostile"]
)
def test_page_is_quiet_and_asks_for_nothing(browser: Any, tmp_path: Path, report: Report) -> None:
    file = written(report, tmp_path)
    with opened(browser, file) as one:
        one.page.wait_for_timeout(100)
        assert one.complaints == [] and one.requests == [file.as_uri()]


def test_policy_lets_no_other_script_run(browser: Any, tmp_path: Path) -> None:
    file = written(DRAWN, tmp_path)
    evil = "<script>document.title = 'obeyed'</script><img src='https://example.com/x.png'>"
    file.write_text(file.read_text().replace("</main>", f"{evil}</main>"))
    with opened(browser, file) as one:
        assert one.page.title() != "obeyed"
        assert any("script-src" in said and "blocked" in said for said in one.complaints)
        assert any("img-src" in said and "blocked" in said for said in one.complaints)


def test_each_link_lands_on_what_it_names(shown: Any) -> None:
    links = shown.locator("main a[href^='#'], nav a[href^='#']")
    for number in range(links.count()):
        link = links.nth(number)
        target = str(link.get_attribute("href"))
        link.click()
        assert shown.evaluate("location.hash") == target
        assert shown.locator(f"[id='{target[1:]}']").is_visible()
        box = shown.locator(f"[id='{target[1:]}']").bounding_box()
        assert 0 <= box["y"] <= 900, target


def test_lanes_move_and_zoom_by_keyboard(shown: Any) -> None:
    shown.focus("#lanes")
    whole = seen(shown)
    shown.keyboard.press("+")
    near = seen(shown)
    assert whole.startswith("all of") and " to " in near
    shown.keyboard.press("ArrowRight")
    assert seen(shown) not in (whole, near)
    shown.keyboard.press("0")
    assert seen(shown) == whole


def test_operators_are_chosen_by_keyboard_and_told_in_words(shown: Any) -> None:
    shown.focus("#lanes")
    shown.keyboard.press("n")
    first = shown.inner_text("#detail")
    assert "aten.mm.default" in first and "model.layers.0.self_attn.q_proj" in first
    assert "work on the host, from 0" in first and "region A" not in first
    shown.keyboard.press("n")
    assert "aten.add.Tensor" in shown.inner_text("#detail")
    assert "region A" in shown.inner_text("#detail")
    shown.keyboard.press("p")
    assert shown.inner_text("#detail") == first
    shown.keyboard.press("f")
    shown.click("#detail a")
    assert shown.evaluate("location.hash") == "#finding-1"


def test_search_finds_and_zooms_by_keyboard(shown: Any) -> None:
    shown.keyboard.press("/")
    shown.keyboard.type("mlp.up")
    lanes = DRAWN.lanes
    assert lanes is not None
    count = sum("mlp.up" in lanes.modules[one.module] for one in lanes.eager)
    assert f"{count} of 402 match" in shown.inner_text("#said")
    shown.keyboard.press("Enter")
    assert "mlp.up" in shown.inner_text("#detail") and " to " in seen(shown)
    first = shown.inner_text("#detail")
    shown.keyboard.press("Enter")
    assert shown.inner_text("#detail") != first
    shown.keyboard.press("Escape")
    assert (
        shown.inner_text("#said") == "" and shown.evaluate("document.activeElement.id") == "lanes"
    )


def test_every_control_is_reached_by_tab(shown: Any) -> None:
    reached = set()
    for _ in range(60):
        shown.keyboard.press("Tab")
        reached.add(
            shown.evaluate("document.activeElement.id || document.activeElement.dataset.do || ''")
        )
    assert {"search", "lanes", "+", "-", "0"} <= reached


def test_page_of_a_trace_is_quiet_and_reached_by_keyboard(browser: Any, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=NO_AXE)
    file = tmp_path / "trace.html"
    report = explain_trace(read_trace(REAL), REAL)
    file.write_text(trace_html.render(report, Look()), encoding="utf-8")
    with opened(browser, file, width=PHONE) as one:
        one.page.focus("#lanes")
        for key in ("n", "ArrowDown", "ArrowDown", "Enter"):
            one.page.keyboard.press(key)
        assert "work on the device, from" in one.page.inner_text("#detail")
        one.page.fill("#search", "had not reached")
        one.page.keyboard.press("Enter")
        assert "Before" in one.page.inner_text("#detail")
        assert one.complaints == [] and one.requests == [file.as_uri()]
        assert one.page.evaluate("document.documentElement.scrollWidth") <= PHONE
        assert [fault["id"] for fault in axe.Axe().run(one.page).response["violations"]] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_page_fits_and_has_no_accessibility_fault(
    browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=NO_AXE)
    with opened(browser, written(DRAWN, tmp_path), width=width, scheme=scheme) as one:
        one.page.evaluate(
            "document.querySelectorAll('details').forEach((part) => { part.open = true; })"
        )
        one.page.focus("#lanes")
        one.page.keyboard.press("f")
        assert one.page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.Axe().run(one.page).response["violations"]
        assert [(fault["id"], fault["nodes"][0]["html"]) for fault in found] == []


def test_a_phone_shows_why_a_strategy_does_not_apply_without_scrolling(
    browser: Any, tmp_path: Path
) -> None:
    with opened(browser, written(DRAWN, tmp_path), width=PHONE) as one:
        ends = one.page.eval_on_selector_all(
            ".more div", "(all) => all.map((one) => one.getBoundingClientRect().right)"
        )
    assert ends and max(ends) <= PHONE


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_page_of_checks_fits_and_has_no_accessibility_fault(
    browser: Any, tmp_path: Path, width: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=NO_AXE)
    file = tmp_path / "check.html"
    checks = [Dated(name, hostile_check()) for name in ("before", "now")]
    file.write_text(render_history(checks, Look()), encoding="utf-8")
    with opened(browser, file, width=width, scheme="dark") as one:
        assert one.complaints == [] and one.requests == [file.as_uri()]
        assert one.page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.Axe().run(one.page).response["violations"]
        assert [(fault["id"], fault["nodes"][0]["html"]) for fault in found] == []


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_page_of_a_program_holds_the_pages_of_its_steps_which_can_be_used(
    browser: Any, tmp_path: Path, width: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=NO_AXE)
    file = tmp_path / "run.html"
    diff = "--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-old = 1\n+new = 1\n"
    report = replace(
        of_program(step_of(DRAWN), step_of(replace(SAFE, reason=HOSTILE))),
        patch=Patch("not tried", diff, "", ""),
    )
    file.write_text(html.render_program(report, Look()), encoding="utf-8")
    with opened(browser, file, width=width) as one:
        first = one.page.frame_locator("iframe").first
        first.locator("#lanes").focus()
        one.page.keyboard.press("n")
        assert "aten.mm.default" in first.locator("#detail").inner_text()
        # By keyboard: the first click outside only takes the focus from the frame.
        one.page.locator("tbody a[href='#step-2']").press("Enter")
        assert one.page.locator("#step-2").bounding_box()["y"] < 900
        for cell in one.page.locator("td.verdict .word").all():
            box = cell.bounding_box()
            assert box["x"] + box["width"] <= width
        assert one.page.evaluate("document.documentElement.scrollWidth") <= width
        assert one.complaints == []
        assert [url for url in one.requests if not url.startswith("about:")] == [file.as_uri()]
        found = axe.Axe().run(one.page).response["violations"]
        assert [(fault["id"], fault["nodes"][0]["html"]) for fault in found] == []


def test_fifty_thousand_operators_are_drawn_with_few_elements(browser: Any, tmp_path: Path) -> None:
    report = replace(COMPARED, lanes=many_lanes(50_000, file=FILE))
    with opened(browser, written(report, tmp_path)) as one:
        assert one.page.locator("#lanes svg *").count() < 2_000
        one.page.focus("#lanes")
        for _ in range(9):
            one.page.keyboard.press("+")
        assert " to " in seen(one.page)
        assert one.page.locator("#lanes svg *").count() < 2_000 and one.complaints == []
