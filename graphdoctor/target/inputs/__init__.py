"""Fresh inputs at any batch size."""
