"""The operator VM: a whole tick of small deltas in one call, with expression bytecode and constraint checks."""
