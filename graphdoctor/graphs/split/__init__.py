"""A training step -> graphs of its forward, backward and optimizer, and calls for the glue between."""
