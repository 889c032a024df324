"""Benchmarks of traces: probing, inserting, forking, opening, merging."""
