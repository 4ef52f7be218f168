"""Recipe to plan: which stages run together as a segment, which signals they need, and checks of their order.

From outside: `plan.make_plan`.
"""
