"""An emulated CUDA device: code that says "cuda" runs on the CPU, by CUDA's rules about graphs."""

from graphdoctor.device.emulated.device import EmulatedDevice, entered
from graphdoctor.device.observe.fallback import EmulationLimit

__all__ = ["EmulatedDevice", "EmulationLimit", "entered"]
