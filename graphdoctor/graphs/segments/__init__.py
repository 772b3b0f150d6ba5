"""A graph of ATen operators -> the same graph, whose safe parts are CUDA graphs and whose rest runs as before."""

from graphdoctor.graphs.segments.backend import Segments
from graphdoctor.graphs.segments.forecast import Forecast, forecast

__all__ = ["Forecast", "Segments", "forecast"]
