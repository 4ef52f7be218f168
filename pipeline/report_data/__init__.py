"""What reports show of documents, read by tasks on workers: histograms and thresholds of signals, samples, scores,
pages.

From outside: `survey`, `histograms`, `rejects`, `scores`, `pages`, `documents`.
"""
