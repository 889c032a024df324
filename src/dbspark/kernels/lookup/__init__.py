"""Looking rows up: batch directories and hash indices, Bloom filters, probes by key, by row and by range."""
