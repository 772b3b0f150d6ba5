"""Applies the rules to a recording: findings, the user's suppressions, the verdict and the report."""
