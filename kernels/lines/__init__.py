"""Rules that keep or drop single lines of a text: C4, RefinedWeb, boilerplate; and the phrases that they look for.

From outside: `lines`, `c4`, `refinedweb`, `boilerplate`, `phrases`.
"""
