"""From what sources are worth, and how much of them there is, to weights in tokens. Mathematics on arrays: no
documents, no files."""
