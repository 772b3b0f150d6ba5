"""Rules over a recording -> findings, the user's suppressions, the verdict and the report."""
