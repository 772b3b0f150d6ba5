"""A model at several batch sizes -> where a graph stops to pay."""
