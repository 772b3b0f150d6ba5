"""A step whose host changes something -> whether it is another one in a later state, or at a later time."""
