"""Map tasks, as workers run them: a partition through its stages and rules, in isolation from documents that kill.

From outside: all modules.
"""
