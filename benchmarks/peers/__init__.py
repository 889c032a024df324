"""dbspark beside what its users would pick instead: the same data, the same ticks, results compared before times."""
