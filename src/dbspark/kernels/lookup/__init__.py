"""Look-ups: batch directories, hash indices, Bloom filters; probes by key, by row and by range; the memtable's table."""
