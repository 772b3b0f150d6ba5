"""A program that keeps running -> what it does with its GPU, counted at little cost; samples where asked for."""
