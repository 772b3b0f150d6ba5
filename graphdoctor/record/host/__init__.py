"""Watches on the host what a step's Python code draws, reads, queries and changes."""
