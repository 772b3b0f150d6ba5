"""CUDA graphs that a program captured itself: stale memory, kept outputs, frozen numbers, inputs, wrong replays."""
