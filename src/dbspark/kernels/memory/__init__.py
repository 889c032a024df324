"""Columns in memory: how kernels address them, hash them, copy rows between them, and exchange them with Arrow."""
