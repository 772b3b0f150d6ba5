"""How long a report's HTML page takes to make, how large it is, and how quick it is in a browser.

Reports of 1,000 and 50,000 operators. With Playwright and a Chromium also: from opening the page until its
lanes are drawn, and one zoom until the next frame.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

sys.path.append(str(Path(__file__).parents[2]))

from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.values.report import Report
from tests.support.lanes import many_lanes
from tests.support.reports import COMPARED, FILE

_ZOOM = """() => new Promise((done) => {
  const begun = performance.now();
  window.graphdoctorLanes.zoom(0.5);
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begun)));
})"""
_LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"


def report_of(operators: int) -> Report:
    return replace(COMPARED, lanes=many_lanes(operators, file=FILE), operators=operators)


def rendered(report: Report, times: int) -> tuple[str, float]:
    """The page, and the median of seconds of CPU time."""
    spent, page = [], ""
    for _ in range(times):
        begun = time.process_time()
        page = written_as("html", report, Look())
        spent.append(time.process_time() - begun)
    return page, statistics.median(spent)


def in_browser(page: str) -> str:
    """What a browser takes, in words; the reason where there is none."""
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return "playwright is not installed"
    if browser is None:
        return "no browser is installed"
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder, "page.html")
        file.write_text(page, encoding="utf-8")
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        try:
            shown = opened.new_page()
            shown.goto(file.as_uri())
            shown.wait_for_selector("#lanes svg")
            shown.wait_for_timeout(300)
            loaded = shown.evaluate(_LOADED)
            zooms = statistics.median(shown.evaluate(_ZOOM) for _ in range(7))
        finally:
            opened.close()
    return f"drawn after {loaded:,.0f} ms, a zoom in {zooms:,.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    print("operators   CPU time     size      in a browser")
    for operators in (1_000, 50_000):
        page, seconds = rendered(report_of(operators), options.times)
        size = len(page.encode()) / 1e6
        print(f"{operators:>9,}  {seconds * 1e3:>6,.0f} ms  {size:>5.2f} MB   {in_browser(page)}")


if __name__ == "__main__":
    main()
