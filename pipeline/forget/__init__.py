"""Taking documents out of a finished run, everywhere in its folder and beside it.

From outside: `takedown`, `request`, `receipt`; `outside`, for tables of `Recipe`.
"""
