"""Compiled kernels: hashing, sorting, merging, probing and gathering of Arrow memory.

Everything that touches rows lives here and nowhere else. A kernel sees plain addresses and
integer arrays, never Python objects, so it runs without the interpreter lock and one compiled
signature serves every schema. What a kernel knows of a column is its *node* (see `nodes`): one
line of eight integers that says where the Arrow buffers of that column lie.

Kernels are compiled on first use and cached on disk beside the source; importing this package
compiles nothing.
"""
