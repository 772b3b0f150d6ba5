"""The site of all pages: complete, without a broken link, and of use without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.browser import opened

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a strict build, in which a broken link or anchor, or a page that no menu names, is an error."""
    pytest.importorskip("material", reason="mkdocs-material, of the group docs, is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


class _Loads(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(LOADED.get(tag, ""))
        if address and (
            tag != "link" or dict(attrs).get("rel") not in ("canonical", "prev", "next")
        ):
            self.addresses.append(address)


def test_pages_load_nothing_from_a_server(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    found = {address for page in pages for address in _Loads(page).addresses}
    assert len(pages) > 60 and [one for one in found if re.match(r"(\w+:)?//", one)] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert styles and re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", styles) == []


def test_every_document_is_a_page(site: Path) -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    expected = {path.relative_to(ROOT).with_suffix(".html").as_posix() for path in documents}
    there = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {one.replace("README.html", "index.html") for one in expected} <= there


def test_a_bar_in_a_table_s_code_is_shown_as_one(site: Path) -> None:
    page = (site / "docs/analyze.html").read_text(encoding="utf-8")
    assert "--mode inference|training</code>" in page


@pytest.mark.parametrize(
    ("start", "words", "found"),
    [
        ("index.html", "non-capturable", "GD111 non-capturable-optimizer"),
        ("docs/rules/GD101.html", "no_sync", "Checks before a merge"),
    ],
)
def test_the_site_is_searched_from_disk(start, words, found, site: Path, browser) -> None:
    with opened(browser, site / start) as shown:
        shown.page.locator(".md-search__input").wait_for(state="attached")
        shown.page.keyboard.press("/")
        shown.page.keyboard.type(words)
        shown.page.locator(".md-search-result__item").first.wait_for(timeout=10_000)
        titles = shown.page.locator(".md-search-result__item h1").all_inner_texts()
        assert found in titles
        shown.page.locator(".md-search-result__link", has_text=found).first.click()
        shown.page.wait_for_url(re.compile(r"h="))
        assert found.split()[-1] in shown.page.locator("h1").inner_text()
    assert shown.complaints == []
    assert [one for one in shown.requests if not one.startswith(("file:", "data:"))] == []


def test_a_phone_shows_a_page_without_scrolling_sideways(site: Path, browser) -> None:
    with opened(browser, site / "docs" / "checks.html", width=390, scheme="dark") as shown:
        assert shown.page.evaluate("document.documentElement.scrollWidth") == 390
