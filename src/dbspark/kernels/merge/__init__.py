"""Merging sorted batches and consolidating their weights, with and without times; merge joins."""
