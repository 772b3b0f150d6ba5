"""Capture a step, a region or a module as CUDA graphs that replay on other inputs."""
