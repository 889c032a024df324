"""The public API: pipelines, their tables, views and transactions."""
