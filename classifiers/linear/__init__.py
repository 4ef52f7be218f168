"""The linear judge: hashed TF-IDF and logistic regression, and which words decide.

From outside: `judge`.
"""
