"""Files that IPython made up for the cells of a notebook -> In[3], as the notebook shows them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from graphdoctor.values.escape import with_texts
from graphdoctor.values.report import Report


def with_cells_named(report: Report) -> Report:
    """The report with cells named as in the notebook that runs; outside of one as it is."""
    if "IPython" not in sys.modules:
        return report
    written = msgspec.to_builtins(report)
    naming = CellNames(set(_files(written)))
    return msgspec.convert(with_texts(written, naming.text), Report) if naming.names else report


class CellNames:
    """Those of these files that are cells, with or without their folder, and what they are called."""

    def __init__(self, files: Iterable[str]) -> None:
        self.names = {file: name for file in files if (name := _cell(file))}
        self.names |= {os.path.basename(file): name for file, name in self.names.items()}
        longest_first = sorted(self.names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def text(self, text: str) -> str:
        return self._pattern.sub(lambda found: self.names[found.group()], text)


def _cell(file: str) -> str:
    """ "In[3]"; "" of a file that is no cell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    _, name = (shell.compile.format_code_name(file) if shell is not None else None) or ("", "")
    return str(name)


def _files(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("file"), str):
            yield value["file"]
        for item in value.values():
            yield from _files(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _files(item)
