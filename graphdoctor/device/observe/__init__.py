"""What both devices tell about a run: operators, storages, random state."""
