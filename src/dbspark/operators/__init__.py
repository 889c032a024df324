"""Operators: pure steps over deltas and spines. Each module says its formula, its state and its cost."""
