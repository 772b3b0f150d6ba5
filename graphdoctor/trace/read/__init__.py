"""A trace file, plain or gzip -> a Trace."""
