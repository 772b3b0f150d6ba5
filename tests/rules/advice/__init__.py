"""Hazards as public repositories have them, each before and after its cure."""
