"""A recipe: YAML to typed stages, and errors that name file, line, field and the likely spelling.

From outside: `recipe.load`, `registry`.
"""
