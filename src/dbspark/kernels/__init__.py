"""Compiled kernels: hashing, sorting, merging, probing and gathering of Arrow memory.

Every loop over rows is in this package. A kernel sees plain addresses and integer arrays, never Python objects, so it
can run without the interpreter's lock (the GIL), and one compiled signature serves every schema. A column is described
to a kernel by its *node*: a line of eight integers with the addresses of its Arrow buffers (`kernels.memory.layout`).

| package or module | what |
|---|---|
| `jit`, `cpython` | declaring kernels; the GIL and reference counts |
| `units`, `compiler` | kernels that are compiled and loaded together; compiling them |
| `target`, `objects`, `package` | machines that they are compiled for; their files; their place in a wheel |
| `preload` | having them ready in time |
| `memory` | the layout of columns, raw loads and stores, hashing, gathering, the Arrow C data interface |
| `sort` | the total order on rows; radix sort; sorting rows by a sort key |
| `merge` | consolidating; merging sorted batches, with and without times; merge joins |
| `lookup` | indices, Bloom filters and look-ups in batches |
| `aggregate` | grouping, exact sums, windows |
| `vm` | the operator VM and expression bytecode |

Kernels are compiled in units, once on a machine, and kept on disk; a platform wheel carries them. Importing this
package compiles nothing.
"""
