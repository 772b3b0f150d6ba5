"""A program that keeps running -> what it does with its GPU, counted and sampled at little cost."""
