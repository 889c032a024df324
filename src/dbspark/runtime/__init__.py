"""Runtimes: own the state of tables and views and run ticks, embedded in this process or sharded on Spark."""
