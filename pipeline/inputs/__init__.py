"""Input files of sources: listed, identified, split into parts, and the files that no reader takes.

From outside: `files`, `portion`, `notes`.
"""
