"""What the strategies with PyTorch's compilers share."""
