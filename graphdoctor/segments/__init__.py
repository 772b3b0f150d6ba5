"""A graph of ATen operators -> the same graph, whose safe parts are CUDA graphs and whose rest runs as before."""
