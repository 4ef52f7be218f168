"""The weight of each source in a mix: given, proportional, UniMax, UtiliMax, RegMix, mixing laws.

From outside: the methods of `mix` (stages/blend/methods.py) call these; `spearman` and `utility` serve judges too.
"""
