"""What `import gristmill` offers: recipes in code; runs, judges and ablations as objects with views for notebooks.

Modules that other rooms call: none; `gristmill` itself does.
"""
