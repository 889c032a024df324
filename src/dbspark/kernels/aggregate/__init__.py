"""Aggregation: grouping, exact sums, statistics, first rows of groups, window frames."""
