"""The public summary of what a run would train on: counts of its documents, the points of the European Union's
template, and the files that say so.

From outside: `files`.
"""
