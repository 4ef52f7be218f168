"""What reports show of documents, read by tasks on workers: histograms and thresholds of signals, samples, scores.

From outside: `survey`, `histograms`, `reasons`, `samples`, `scores`.
"""
