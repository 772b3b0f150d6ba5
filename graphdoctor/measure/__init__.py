"""Wall clock, intervals, profiles, and what this GPU costs."""
