"""Repair of damaged text: entities, mojibake, normal forms, invisible characters.

From outside: `repair.repair`.
"""
