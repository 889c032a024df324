"""The public API: pipelines, with their tables, views and transactions."""
