"""Run a graph of ATen operators with its safe parts as CUDA graphs and the rest in eager."""

from graphdoctor.graphs.segments.backend import Segments
from graphdoctor.graphs.segments.forecast import Forecast, forecast

__all__ = ["Forecast", "Segments", "forecast"]
