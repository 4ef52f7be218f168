"""The command line: `gristmill` and its commands.

The highest room: nothing imports it. A command is a module, with `COMMAND` at its end, and a word in `app.COMMANDS`.
"""
