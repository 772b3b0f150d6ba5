"""Samples' HTML pages and the tab of TensorBoard in a headless Chromium -> docs/images/*.png, small ones.

Needs Playwright, Chromium and TensorBoard.

Look at each picture before it is committed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from graphdoctor.cli import main as graphdoctor

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 150_000


class Shot(NamedTuple):
    """What is run, and what of its page is shown, from the element `top` on; sizes in CSS pixels."""

    name: str
    command: tuple[str, ...]
    scheme: str
    width: int
    height: int
    top: str = ""


SHOTS = (
    Shot("analysis", ("analyze", "sample_models/bert_mlm.py"), "light", 1120, 720),
    Shot("lanes", ("analyze", "sample_models/kv_cache.py"), "light", 1120, 492, "#timeline"),
    Shot("modules", ("analyze", "sample_models/kv_cache.py"), "dark", 1120, 760, "#timeline"),
    Shot("phone", ("analyze", "sample_models/dynamic_branch.py"), "dark", 390, 844),
    Shot("safe", ("analyze", "sample_models/adam_training.py:capturable"), "light", 1120, 640),
    Shot("trace", ("trace", "tests/real/h100_bert_small_cut.json.gz"), "light", 1120, 780),
)


# The tab GRAPHDOCTOR of a folder that `analyze --trace-dir` left.
TABS = (
    Shot("tensorboard", (), "light", 1180, 720),
    Shot("tensorboard-dark", (), "dark", 1180, 720),
)
TRACED = ("analyze", "sample_models/dynamic_branch.py", "--trace-dir")


def picture(browser: Any, url: str, shot: Shot, *, wait_for: str = "") -> bytes:
    context = browser.new_context(
        color_scheme=shot.scheme,
        viewport={"width": shot.width, "height": shot.height},
        device_scale_factor=1,
        offline=url.startswith("file:"),
        reduced_motion="reduce",
    )
    shown = context.new_page()
    shown.goto(url)
    if wait_for:
        shown.frame_locator("iframe").locator(wait_for).wait_for()
    if shot.top:
        shown.evaluate("(at) => document.querySelector(at).scrollIntoView()", shot.top)
    shown.wait_for_timeout(300)
    content: bytes = shown.screenshot()
    context.close()
    return content


def main() -> None:
    from playwright.sync_api import sync_playwright
    from tensorboard import program
    from tensorboard.plugins.core.core_plugin import CorePluginLoader

    from graphdoctor.reporters.tensorboard.plugin import GraphDoctorPlugin

    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no browser is installed: expected chromium or google-chrome on PATH")
    os.chdir(ROOT)
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for shot in SHOTS:
            page = Path(folder, f"{shot.name}.html")
            graphdoctor([*shot.command, "--report", f"html={page}"])
            save(shot, picture(browser, page.as_uri(), shot))
        graphdoctor([*TRACED, f"{folder}/runs"])
        board = program.TensorBoard(plugins=[CorePluginLoader(), GraphDoctorPlugin])
        board.configure(logdir=f"{folder}/runs", host="127.0.0.1", port=0, load_fast="false")
        url = f"{board.launch()}#graphdoctor"
        for shot in TABS:
            save(shot, picture(browser, url, shot, wait_for="canvas[data-events]"))
        browser.close()


def save(shot: Shot, content: bytes) -> None:
    if len(content) > MOST_BYTES:
        sys.exit(f"{shot.name} has {len(content):,} bytes, more than {MOST_BYTES:,}")
    (IMAGES / f"{shot.name}.png").write_bytes(content)


if __name__ == "__main__":
    main()
