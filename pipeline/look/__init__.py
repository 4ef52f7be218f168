"""Looking at a finished run: its counts, one document's history, why it was dropped, other thresholds.

From outside: `run_folder`, `history`, `why`, `tune`, `overview`.
"""
