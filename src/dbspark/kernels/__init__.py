"""Compiled kernels: hashing, sorting, merging, probing and gathering of Arrow memory.

Every loop over rows is in this package. A kernel sees plain addresses and integer arrays, never Python objects, so it
can run without the interpreter's lock (the GIL), and one compiled signature serves every schema. A column is described
to a kernel by its *node*: a line of eight integers with the addresses of its Arrow buffers (`kernels.memory.layout`).

| package or module | what |
|---|---|
| `jit`, `cpython` | the decorators that declare kernels; the GIL and reference counts |
| `units`, `compiler` | units, which are compiled and loaded together; their compiler |
| `target`, `objects`, `package` | target machines; files of compiled units; packing them into a wheel |
| `preload` | loading and compiling all units while Spark starts |
| `memory` | the layout of columns, raw loads and stores, hashing, gathering, the Arrow C data interface |
| `sort` | the total order on rows; radix sort; sorting rows by a sort key |
| `merge` | consolidating; merging sorted batches, with and without times; merge joins |
| `lookup` | indices, Bloom filters and look-ups in batches |
| `aggregate` | grouping, exact sums, windows |
| `vm` | the operator VM and expression bytecode |

Kernels are compiled in units, once on a machine, and cached on disk; a platform wheel carries compiled units. Importing
this package compiles nothing.
"""
