"""Look-ups: batch directories, hash indices, Bloom filters; probes by key, row and range; the memtable's hash table."""
