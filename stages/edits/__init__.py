"""Language models that edit: `refine` names edits that are checked and applied, `rephrase` writes new documents.

From outside: the stages, by `gristmill.stages`.
"""
