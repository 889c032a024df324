"""Aggregation: grouping, accumulators, exact sums, moments, bit counts, incremental top-k, window functions."""
