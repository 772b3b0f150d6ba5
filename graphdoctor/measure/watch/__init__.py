"""Counts what a program that keeps running does with its GPU, at little cost, with samples where asked for."""
