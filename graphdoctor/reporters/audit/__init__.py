"""What an audit of a program's CUDA graphs found, in each format."""
