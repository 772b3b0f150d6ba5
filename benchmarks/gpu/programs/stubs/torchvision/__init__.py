"""As much of torchvision as the programs ask for: small random pictures, and no files."""

from . import datasets, transforms, utils

__all__ = ["datasets", "transforms", "utils"]
