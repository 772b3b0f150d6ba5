"""Split a training step into graphs of forward, backward and optimizer, with eager calls between them."""
