"""Stages that measure or rewrite text: signals, language, repair, personal data, URL rules, boilerplate."""
