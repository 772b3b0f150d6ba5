"""Lines of Python -> the `with graphdoctor.allowed(...)` blocks in them, as the comments that they stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from graphdoctor.diagnose.comments import Comment

_NAME = "allowed"
_PACKAGE = "graphdoctor"


def allowed_in(source: Sequence[str]) -> tuple[Comment, ...]:
    """All of them, in order; none of a text that is not Python."""
    if not any(_NAME in line for line in source):
        return ()
    try:
        tree = ast.parse("".join(source))
    except (SyntaxError, ValueError):
        return ()
    names = frozenset(_names(tree))
    blocks = (node for node in ast.walk(tree) if isinstance(node, (ast.With, ast.AsyncWith)))
    found = (one for block in blocks for one in _of_block(block, names))
    return tuple(sorted(found, key=lambda one: one.line))


def _names(tree: ast.Module) -> Iterator[str]:
    """What the file calls it: "graphdoctor.allowed", "gd.allowed", "allowed"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == _PACKAGE:
                    yield f"{alias.asname or alias.name}.{_NAME}"
        elif isinstance(node, ast.ImportFrom) and node.module == _PACKAGE:
            yield from (alias.asname or _NAME for alias in node.names if alias.name == _NAME)


def _of_block(block: ast.With | ast.AsyncWith, names: frozenset[str]) -> Iterator[Comment]:
    for item in block.items:
        call = item.context_expr
        if isinstance(call, ast.Call) and ast.unparse(call.func) in names:
            rules = tuple(text for arg in call.args if (text := _text(arg)))
            reasons = [_text(word.value) for word in call.keywords if word.arg == "reason"]
            is_clear = len(rules) == len(call.args)
            yield Comment(
                line=call.lineno,
                text=ast.unparse(call),
                rules=rules if is_clear else (),
                reason=reasons[0] if reasons else "",
                is_for_file=False,
                first=block.body[0].lineno,
                last=block.end_lineno or block.body[-1].lineno,
                is_block=True,
            )


def _text(node: ast.expr) -> str:
    """A string that is written out; "" for anything else."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else ""  # type: ignore[attr-defined]
