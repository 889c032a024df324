"""What joins a pipeline to Spark's streams and sources: streams in, sinks out, and the data source `dbspark`.

They get the functions that they call as arguments, and import no pipeline. Importing this package loads neither pyspark
nor numba.
"""
