"""Is a replay the same function as eager? Twins from the same state, compared."""
