"""Tasks to results: the engine and its journal, executors, clusters, and what a worker does.

From outside: `engine.Engine`, `executor.DaskExecutor`, `cluster.Where`.
"""
