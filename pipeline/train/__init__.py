"""`gristmill train`: a decoder trained on token shards as a YAML plan says, on one GPU or many.

From outside: `plan.load`, `work`.
"""
