"""Circuits: streams and operators by hand, without a JVM."""

from dbspark.circuit.builder import Builder
from dbspark.circuit.executor import Circuit
from dbspark.circuit.graph import Graph, Node, Stream

__all__ = ["Builder", "Circuit", "Graph", "Node", "Stream"]
