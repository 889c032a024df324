"""Benchmarks of SQL views."""
