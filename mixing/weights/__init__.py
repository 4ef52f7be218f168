"""How much of each source a mix takes: given, proportional, UniMax, UtiliMax, RegMix, mixing laws.

From outside: `mixing.methods` calls these; `supply`, `tables` and `utility` are also used by stages.
"""
