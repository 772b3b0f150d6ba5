"""Renders a template, its values and the data of its script as one HTML file that needs nothing else.

Text is escaped three times over: `visible` makes control characters harmless, jinja2 escapes markup, and the
page's own policy lets a browser run no script and load nothing but what was put in here.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from graphdoctor.values.escape import visible, with_texts

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent
_STYLE = "style.css"
# In a script element, text ends at "</script" and "<!--" whatever it is; nobody reads these as one there.
_UNSAFE_IN_SCRIPT = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def document(
    template: str,
    *,
    data: object = None,
    scripts: tuple[str, ...] = (),
    framed: tuple[str, ...] = (),
    **values: Any,
) -> str:
    """The page. `data` is what the scripts read, as JSON; without it there is no script at all.

    `framed`: the scripts of pages that this one holds in frames, where its own policy holds, too.
    """
    from markupsafe import Markup

    style = _asset(_STYLE)
    script = "".join(map(_asset, scripts)) if data is not None else ""
    return (
        _environment()
        .get_template(template)
        .render(
            **values,
            policy=_policy(style, script or "".join(map(_asset, framed))),
            style=Markup(style),  # our own files, which hold no value of anybody's
            script=Markup(script),
            data=Markup(script_json(data)) if data is not None else "",
        )
    )


def script_json(data: object) -> str:
    """JSON that is safe inside of a script element. Raises ValueError for what JSON cannot hold."""
    return msgspec.json.encode(with_texts(data, visible)).decode().translate(_UNSAFE_IN_SCRIPT)


def _policy(style: str, script: str) -> str:
    """The content security policy: this style, this script, no address at all."""
    scripts = f"'{_digest(script)}'" if script else "'none'"
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src {scripts}; base-uri 'none';"
        " form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _harmless(value: Any) -> Any:
    """Plain text without control characters; what is markup already is ours."""
    return visible(value) if type(value) is str else value
