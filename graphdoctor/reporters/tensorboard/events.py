"""Scalars and a page of text in; a TensorBoard event file beside a run's traces out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphdoctor.reporters.tensorboard.scalars import Scalar
from graphdoctor.values.errors import CannotDoItHere

PAGE_TAG = "graphdoctor/report"


def write_events(folder: Path, scalars: Sequence[Scalar], page: str | None) -> None:
    """Raises CannotDoItHere where TensorBoard is not installed."""
    writer = _writer(folder)
    try:
        for tag, value in scalars:
            writer.add_scalar(tag, value)
        if page is not None:
            writer.add_text(PAGE_TAG, page)
    finally:
        writer.close()


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise CannotDoItHere(
            "TensorBoard cannot be imported, so the trace folder has traces only, without figures and"
            f" text: pip install tensorboard ({error})."
        ) from error
    return SummaryWriter(log_dir=str(folder))
