"""What a step touches: found, saved, put back, cloned."""
