"""Personal data in text: e-mail and IP addresses, telephone and card numbers, secret keys.

From outside: `spans`; the other modules are the patterns that it looks for.
"""
