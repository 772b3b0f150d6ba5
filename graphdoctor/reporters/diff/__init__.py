"""What changed between two reports, in one file for each format."""
