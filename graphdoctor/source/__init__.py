"""The source code of what runs: files as syntax trees, and where in them a line or a code object is."""
