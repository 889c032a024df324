"""Runtimes: who keeps the state of tables and views and makes ticks. Embedded in this process, or sharded on Spark."""
