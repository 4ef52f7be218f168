"""What a language model is asked about documents, and how its answers become marks: MEDU and rubrics.

From outside: `medu`, `rubric`, `reading`.
"""
