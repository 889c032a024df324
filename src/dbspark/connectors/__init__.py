"""What joins a pipeline to Spark's streams and sources: streams in, sinks out, and the data source `dbspark`.

Pipelines pass in the functions that these modules call; nothing here imports a pipeline. Importing this package loads
neither pyspark nor numba.
"""
