"""A run of the step, watched on the host -> what its Python code draws, reads, asks and changes."""
