"""Published quality filters, one family a file: their settings are documentation, their verdicts name reasons. They
decide on signals that `stages.text` measures.

From outside: the stages, by `gristmill.stages`.
"""
