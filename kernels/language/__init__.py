"""fastText predictions and hashed TF-IDF over columns of text, without Python and without the GIL.

From outside: `language`, `word_rows`, `hashed_terms`, and `vocabulary` for the reader of models.
"""
