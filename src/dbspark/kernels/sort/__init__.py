"""Sorting: the total order on rows, and radix sort by key hash and row hash."""
