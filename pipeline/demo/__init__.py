"""A small crawl with a known truth, and the check that a run on it told the truth."""
