"""Languages by naive Bayes over byte strings, with the model of the package py3langid."""

from __future__ import annotations
