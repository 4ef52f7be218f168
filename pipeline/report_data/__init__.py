"""What reports show of stages and of documents, read by tasks on workers: what a stage tells of itself, histograms and
thresholds of signals, samples, scores.

From outside: `figures`, `survey`, `histograms`, `rejects`, `scores`, `documents`.
"""
