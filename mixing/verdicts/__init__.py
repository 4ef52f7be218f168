"""Statistics of an ablation: paired differences, power, and the verdict.

From outside: `verdict`, `paired` and `power`.
"""
