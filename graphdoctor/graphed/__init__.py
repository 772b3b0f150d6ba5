"""Modules of a model -> the same modules, whose forward and backward pass are CUDA graphs."""
