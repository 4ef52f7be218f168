"""Stages that measure or rewrite one text: signals, language, repair, personal data, URL rules, line rules.

From outside: the stages, by `gristmill.stages`; `directions`, `line_text`, `measure`, `sites` and `url_lists` serve
`blend`, `rules` and `dedup`.
"""
