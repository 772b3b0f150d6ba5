"""An emulated CUDA device: runs code that says "cuda" on the CPU, with CUDA's rules about graphs."""

from graphdoctor.emulator.device import EmulatedDevice
from graphdoctor.emulator.fallback import EmulationLimit

__all__ = ["EmulatedDevice", "EmulationLimit"]
