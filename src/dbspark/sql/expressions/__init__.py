"""Expressions of Spark SQL on Arrow columns, one module per family; `compiler` finds the rules in all of them."""
