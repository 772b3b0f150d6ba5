"""Decides whether a step whose host changes something differs in a later state, or at a later time."""
