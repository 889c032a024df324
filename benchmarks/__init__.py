"""Benchmarks: claims about speed, each a ratio against something run beside it in the same process."""
