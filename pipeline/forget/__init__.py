"""Taking documents out of a finished run, everywhere in its folder, and finding what is in its shards.

From outside: `forget`, `request`, `receipt`, `find`.
"""
