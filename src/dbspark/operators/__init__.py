"""Operators: pure steps over deltas and spines. The preface of each module states the formula, state and cost."""
