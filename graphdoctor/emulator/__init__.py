"""An emulated CUDA device: code that says "cuda" runs on the CPU, by CUDA's rules about graphs."""

from graphdoctor.emulator.device import EmulatedDevice
from graphdoctor.emulator.fallback import EmulationLimit

__all__ = ["EmulatedDevice", "EmulationLimit"]
