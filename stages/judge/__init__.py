"""Scores of judges as stages: `judge`, `llm_score`, and the thresholds and buckets that use them."""
