"""What a run keeps on disk: storage (files that appear whole or not at all, with checksums), partitions, accounting,
the journal of finished tasks, and the lock on a folder.

From outside: all modules. The lowest room of the pipeline but for `errors` and `formatting`.
"""
