"""What describes the inputs -> fresh inputs, at any batch size."""
