"""Files of other tools: documents of a run written for them, their judges and token files taken in. Other rooms call
`documents` and `imports`.
"""
