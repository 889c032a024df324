"""What joins a pipeline to Spark's streams and sources: streams in, sinks out, and the data source `dbspark`.

They are handed what to call, and know no pipeline. Importing this package loads neither pyspark nor numba.
"""
