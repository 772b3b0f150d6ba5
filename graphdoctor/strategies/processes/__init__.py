"""A strategy in a process of its own."""
