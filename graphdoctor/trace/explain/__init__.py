"""Explain why the GPU waits."""
