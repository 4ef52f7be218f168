"""The command line: `gristmill` and its commands.

The highest room: nothing imports it.
"""
