"""Benchmarks of Z-sets: what each backend costs, and whether the adaptive one keeps its promises."""
