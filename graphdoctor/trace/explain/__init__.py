"""A Trace -> why the GPU waits."""
