"""What an analysis found and the traces it kept in; a folder for TensorBoard and Perfetto out."""

from __future__ import annotations

from graphdoctor.reporters.tensorboard.write import with_traces

__all__ = ["with_traces"]
