"""One module a system. Each imports its system only when it is started: every one has an environment of its own."""
