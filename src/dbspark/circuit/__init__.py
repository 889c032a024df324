"""Circuits: graphs of streams and operators, how they are built, and how they run; no JVM needed."""

from dbspark.circuit.builder import Builder
from dbspark.circuit.executor import Circuit
from dbspark.circuit.graph import Graph, Node, Stream

__all__ = ["Builder", "Circuit", "Graph", "Node", "Stream"]
