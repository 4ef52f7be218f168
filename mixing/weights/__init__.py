"""The weight of each source in a mix: given, proportional, UniMax, UtiliMax, RegMix, mixing laws.

From outside: `mixing.methods` calls these; `supply`, `tables` and `utility` are also used by stages.
"""
