"""The operator VM: a tick of small deltas in one call, with expression bytecode and constraint checks."""
