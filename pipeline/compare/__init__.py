"""Two runs side by side: recipes, counts, fates of documents, signals; as a page and in a terminal.

From outside: `compare`, `page`, `text`.
"""
