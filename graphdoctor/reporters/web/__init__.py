"""What the HTML formats share: one file that needs no network, its style and its lanes."""

from graphdoctor.reporters.web.document import document

__all__ = ["document"]
