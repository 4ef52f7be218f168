"""PDF files: characters with their places, read in child processes with limits, and the text that they make.

From outside: `files` reads a file and renders its pages; `document` makes text of what it read; `pages` does both for a
file that is to be a page.
"""
