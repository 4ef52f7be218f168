"""Lines of the site go, lines of the text stay, in many languages."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages.text.boilerplate import Boilerplate


def cleaned(text: str | None, **settings):
    table = Boilerplate(**settings)(pa.table({"text": pa.array([text], pa.string())}))
    return table["text"][0].as_py(), table["boilerplate_lines_removed"][0].as_py()


@pytest.mark.parametrize(
    "line",
    ["Read more...", "READ MORE »", "Continue reading →", "12 Likes", "Share (3)", "3 items in cart", "Sign in", "Log-in", "« Previous", "Privacy Policy",
     "This website uses cookies to make it better. Learn more", "You must be logged in to post a comment.", "© 2024 Example. All rights reserved.",
     "Weiterlesen", "Lire la suite…", "S'inscrire", "Читать далее", "ЧИТАТЬ ДАЛЕЕ", "続きを読む", "阅读更多 >>", "分享 5", "더 보기",
     "Diese Seite verwendet Cookies.", "本网站使用Cookie。"],
)  # fmt: skip
def test_lines_of_the_site_go(line):
    assert cleaned(f"A first line.\n{line}\nA last line.") == ("A first line.\nA last line.", 1)


@pytest.mark.parametrize(
    "line",
    ["I like to read more books.", "Home is where the heart is.", "Search and you shall find.", "He likes her.", "Breadmore", "我想阅读更多的书。",
     "A line of a text that speaks of the use of cookies by sites, at such length, and with so many words of its own beside, that no reader could ever "
     "take it for a notice, whatever else it may be, goes nowhere and stays."],
)  # fmt: skip
def test_lines_of_the_text_stay(line):
    assert cleaned(f"\n{line} \n\n") == (f"\n{line} \n\n", 0)


def test_phrases_of_your_own():
    assert cleaned("Jump to recipe\nSalt.", more_lines=("jump to recipe",)) == ("Salt.", 1)
    assert cleaned("Share\nSalt.", lines=("salt",), notices=()) == ("Share", 1)
    with pytest.raises(SettingsError, match="has no word"):
        Boilerplate(more_lines=("...",))


@pytest.mark.parametrize("text", ["", " \n\t", "a", "😀", "שלום", "\0", "\u0301", None])
def test_odd_texts(text):
    assert cleaned(text) == (text, 0)
