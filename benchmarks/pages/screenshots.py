"""Samples' HTML pages in a headless Chromium -> docs/images/*.png, small ones. Needs Playwright and Chromium.

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


def picture(browser: Any, page: Path, shot: Shot) -> bytes:
    context = browser.new_context(
        color_scheme=shot.scheme,
        viewport={"width": shot.width, "height": shot.height},
        device_scale_factor=1,
        offline=True,
        reduced_motion="reduce",
    )
    shown = context.new_page()
    shown.goto(page.as_uri())
    if shot.top:
        shown.evaluate("(at) => document.querySelector(at).scrollIntoView()", shot.top)
    shown.wait_for_timeout(300)
    content: bytes = shown.screenshot()
    context.close()
    return content


def main() -> None:
    from playwright.sync_api import sync_playwright

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
            content = picture(browser, page, shot)
            if len(content) > MOST_BYTES:
                sys.exit(f"{shot.name} has {len(content):,} bytes, more than {MOST_BYTES:,}")
            (IMAGES / f"{shot.name}.png").write_bytes(content)
        browser.close()


if __name__ == "__main__":
    main()
