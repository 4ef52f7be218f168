"""Files of a run: written whole or not at all, with checksums; parts, rejects, counts, and the journal of finished
tasks.

From outside: all modules. The lowest room of the pipeline but for `errors` and `formatting`.
"""
