"""Recipe to plan: which stages run together as a leg, which signals they need, and checks of their order.

From outside: `plan.make_plan`.
"""
