"""Tasks to results: the scheduler of tasks, the cluster, what a worker does, and careful retries of what killed one.

From outside: `engine.Engine`, `cluster.connected`.
"""
