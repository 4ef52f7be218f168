"""Crawls that lie elsewhere, fetched by range: requests and their repetition, a cache on disk, dumps and the index.

From outside: `listing` (what a `cc` source reads, and what fetching it takes) and `remote` (a file to read from).
"""
