"""Names of crawlers that gather text for the training of language models, in dated lists.

Compiled from general knowledge of what operators publish of their crawlers, and not from a register: check it before
you rely on it. A list never changes once it is released; a later one gets a date of its own, so that a recipe decides
tomorrow as it does today. Crawlers that only answer a user's question or feed a search index are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

LISTS: dict[str, tuple[str, ...]] = {
    "ai-2026-11": (
        "AI2Bot",
        "Ai2Bot-Dolma",
        "Amazonbot",
        "anthropic-ai",
        "Applebot-Extended",
        "Bytespider",
        "CCBot",
        "Claude-Web",
        "ClaudeBot",
        "cohere-ai",
        "cohere-training-data-crawler",
        "DeepSeekBot",
        "Diffbot",
        "FacebookBot",
        "Google-CloudVertexBot",
        "Google-Extended",
        "GPTBot",
        "ICC-Crawler",
        "img2dataset",
        "Kangaroo Bot",
        "Meta-ExternalAgent",
        "omgili",
        "omgilibot",
        "PanguBot",
        "SBIntuitionsBot",
        "Timpibot",
        "VelenPublicWebCrawler",
        "Webzio-Extended",
    ),
}


def named_agents(names: Sequence[str]) -> tuple[str, ...]:
    """The agents, with lists replaced by what is in them; each once, whatever its case."""
    agents: dict[str, str] = {}
    for name in names:
        for agent in LISTS.get(name, (name,)):
            agents.setdefault(agent.lower(), agent)
    return tuple(agents.values())
