"""An HTML page, read as a browser's parser does: what it consists of, and what it says."""

from __future__ import annotations

from html.parser import HTMLParser


class Parsed(HTMLParser):
    """Elements with their attributes, the text between them, and what is inside of script and style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._inside = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag if tag in self.raw else self._inside

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[self._inside].append(data)
        else:
            self.text += data

    def all_of(self, attribute: str) -> list[str]:
        return [str(given[attribute]) for _, given in self.elements if attribute in given]
