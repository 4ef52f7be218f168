"""Numbers about a text: characters, lines, compression, letters, diversity of words, syllables.

Each module measures a column in one pass; `stages.text.signals` calls them.
"""
