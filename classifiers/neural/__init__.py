"""Neural judges: encoders on packed tokens, their heads, training, and scoring in bf16, fp8 or int8.

From outside: `judge`, `training`, `scoring`.
"""
