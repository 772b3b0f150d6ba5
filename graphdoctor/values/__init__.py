"""The frozen values that pass between stages. No torch."""
