"""From the value and the supply of each source to weights in tokens. Mathematics on arrays: no documents, no files."""
