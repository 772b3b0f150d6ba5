"""Check several targets: what is new or worse than a baseline, and the exit code."""
