"""What a language model is asked about documents, and how its answers become marks: MEDU, rubrics,
and taxonomies of labels.

From outside: `medu`, `rubric`, `reading`, `taxonomy`.
"""
