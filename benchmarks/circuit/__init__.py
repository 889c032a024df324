"""Benchmarks of circuits."""
