"""A target -> its step as a CUDA graph, proof that replays are right, and what they gain."""
