"""What every floor needs, and no kernel: files that appear whole, settings, HTTP with its retries, energy.

The lowest room: it imports no other. Nothing here is compiled.
"""
