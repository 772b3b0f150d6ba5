"""A check, in one file for each format."""
