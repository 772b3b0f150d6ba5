"""What an analysis found and the traces it kept -> a folder for TensorBoard and Perfetto."""

from __future__ import annotations

from graphdoctor.reporters.tensorboard.write import with_traces

__all__ = ["with_traces"]
