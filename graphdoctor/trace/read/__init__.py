"""Read trace files."""
