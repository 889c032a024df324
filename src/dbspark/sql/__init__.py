"""Spark SQL in, circuit out."""
