"""Writes what an analysis found, and its traces, as a folder for TensorBoard and Perfetto.

TensorBoard loads the plugin when it starts: nothing here may import torch, which `write` needs.
"""

from __future__ import annotations

SAVED_REPORT = "graphdoctor.json"  # beside the traces of the eager run
