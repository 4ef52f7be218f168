"""The sites of the demo crawl: an article inside the navigation, banners and footers that real pages carry."""

from __future__ import annotations

import random
from dataclasses import dataclass
from html import escape

from gristmill.pipeline.demo.texts import Article


@dataclass(frozen=True)
class Site:
    """A host and what it puts around every article."""

    host: str
    title: str
    menu: tuple[str, ...]
    footer: str
    layout: str  # "semantic", "classes" or "plain"


SITES = (
    Site(
        "docs.example",
        "Library Handbook",
        ("Start here", "Tutorials", "Release notes", "Download"),
        "All rights reserved",
        "semantic",
    ),
    Site(
        "mirror.example",
        "Code Mirror",
        ("Browse packages", "Top contributors", "Sign in"),
        "Terms of service apply",
        "classes",
    ),
    Site(
        "notes.example",
        "A Programmer's Notebook",
        ("Archive of posts", "About me", "RSS feed"),
        "Powered by PlainPress",
        "plain",
    ),
)
BANNER = "We use cookies to improve your experience"
ACCEPT = "Accept all cookies"
NEWSLETTER = "Subscribe to our newsletter"
RELATED = "You may also like"

# What only navigation says; an extracted text that says it has kept what it should have left.
NAVIGATION = (
    BANNER,
    ACCEPT,
    NEWSLETTER,
    RELATED,
    "Start here",
    "Release notes",
    "Browse packages",
    "Top contributors",
    "Archive of posts",
    "All rights reserved",
    "Terms of service apply",
    "Powered by PlainPress",
)


def page(article: Article, site: Site, rng: random.Random, titles: list[str], charset: str = "utf-8") -> bytes:
    """The article as a page of the site; `titles` are those of other pages, for the links beside it."""
    menu = "".join(f'<li><a href="/{at}">{escape(name)}</a></li>' for at, name in enumerate(site.menu))
    related = "".join(
        f'<li><a href="/p/{rng.randint(1, 9999)}">{escape(title)}</a></li>' for title in rng.sample(titles, 4)
    )
    head = (
        f'<!DOCTYPE html>\n<html lang="{article.language}">\n<head>\n<meta charset="{charset}">\n'
        f"<title>{escape(article.title)} - {escape(site.title)}</title>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="stylesheet" href="/static/site.css">\n'
        f"<style>body {{ font: 16px/1.5 sans-serif }}</style>\n"
        f"<script>window.dataLayer = []; // {rng.getrandbits(48):x}\n</script>\n</head>\n"
    )
    text = body(article)
    if site.layout == "semantic":
        inner = (
            f'<header class="site-header"><a href="/">{escape(site.title)}</a><nav class="navbar"><ul>{menu}</ul></nav></header>\n'
            f'<main>\n<article>\n{text}</article>\n</main>\n<aside class="sidebar"><h3>{RELATED}</h3><ul>{related}</ul></aside>\n'
            f'<footer class="footer"><p>{NEWSLETTER}</p><p>© 2026 {escape(site.title)}. {site.footer}.</p></footer>\n'
        )
    elif site.layout == "classes":
        inner = (
            f'<div id="header"><div class="navigation"><ul class="menu">{menu}</ul></div></div>\n<div id="wrapper">\n'
            f'<div class="sidebar" id="sidebar"><h3>{RELATED}</h3><ul>{related}</ul></div>\n'
            f'<div id="content" class="main-content">\n{text}</div>\n</div>\n'
            f'<div id="footer" class="footer"><p>{NEWSLETTER}</p><p>{site.footer}.</p></div>\n'
        )
    else:
        inner = (
            f'<nav><ul>{menu}</ul></nav>\n<article class="post">\n{text}</article>\n'
            f'<div class="related-posts sidebar"><h3>{RELATED}</h3><ul>{related}</ul></div>\n<footer><p>{site.footer}.</p></footer>\n'
        )
    banner = f'<div class="cookie-banner" id="cookie-consent" role="dialog"><p>{BANNER}.</p><button>{ACCEPT}</button></div>\n'
    return f"{head}<body>\n{banner}{inner}</body>\n</html>\n".encode(charset, "xmlcharrefreplace")


def body(article: Article) -> str:
    """The article alone. It is the same on every site, so that its text is too."""
    parts = [f"<h1>{escape(article.title)}</h1>\n"]
    for tag, text in article.blocks:
        if tag == "a":
            parts.append(f'<a href="https://{escape(text)}.example/">{escape(text)}</a>\n')
        else:
            parts.append(f"<{tag}>{escape(text)}</{tag}>\n")
    return "".join(parts)
