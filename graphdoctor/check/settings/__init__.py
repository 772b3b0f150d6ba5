"""A project's settings: read, found and written."""
