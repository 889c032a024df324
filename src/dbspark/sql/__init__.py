"""Compiles Spark SQL to circuits: Spark analyses and optimises a query; its plan becomes operators here."""
