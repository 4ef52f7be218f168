"""Mixes and orders: how much of each source is trained on, and when.

From outside: the stages `mix` and `order`; `groups` and `copies` serve other rooms.
"""
