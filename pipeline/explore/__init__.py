"""`gristmill explore OUT`: a small local web page over a run that is finished, under way or broken. It reads, and never
writes.

Crawled text is hostile. What keeps it text: every value is escaped where pages are made (`app.py`), a strict
Content-Security-Policy goes with every answer (`answers.py`), and original markup is shown only in a sandboxed frame,
with every element renamed that could ask for anything (`originals.py`). Nothing in a request is ever a file's name:
sources, stages, parts and documents are looked up in lists (`look/run_folder.py`).
"""
