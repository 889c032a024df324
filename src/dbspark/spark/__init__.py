"""Spark as dbspark uses it: a Java that runs it, and the session.

Importing this package loads neither pyspark nor Java; both are looked for when a session is asked for.
"""

from dbspark.spark.java import Java, find_java
from dbspark.spark.jvm import log_file
from dbspark.spark.session import SessionHandle, get_session

__all__ = ["Java", "SessionHandle", "find_java", "get_session", "log_file"]
