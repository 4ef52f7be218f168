"""Features of the blocks of a page, and the forests that tell main text from the rest.

From outside: `features`, `columns` and `choice`.
"""
