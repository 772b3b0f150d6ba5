"""A step, a region or a module -> CUDA graphs of it, ready to be replayed on other inputs."""
