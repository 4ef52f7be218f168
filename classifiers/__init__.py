"""Judges that score a column of text, and the reading of model files."""
