"""What becomes of the text of a PDF file: reading order, words cut at lines' ends, running heads, tables; and which
pages have none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from gristmill.stages.pdf.document import PdfText, text_of
from gristmill.stages.pdf.files import Opened, Page, read_pdf
from tests.stages.pdf.made_pdfs import FONT, GARBLED, SCAN, Text, clustered, column, pdf, prose

pytest.importorskip("pypdfium2")


def read(*pages: list[Text] | bytes, **options) -> PdfText:
    return text_of(read_pdf(pdf(pages, **options)))


def words_of(made: PdfText) -> list[str]:
    return made.text.split()


def test_of_two_columns_the_left_is_read_first_and_a_title_over_both_before_them():
    left, right = column(prose(150), 60, 700), column(prose(150, 7), 320, 700)
    rows = sorted(left[0] + right[0], key=lambda text: (-text[1], text[0]))  # drawn row by row
    made = read([(150, 740, 18, "A title that stands over both of the columns"), *rows])
    told = ["A", "title", "that", "stands", "over", "both", "of", "the", "columns", *prose(150), *prose(150, 7)]
    assert words_of(made)[: len(told)] == told and len(told) == 309


def test_three_columns_are_read_in_order():
    columns = [column(prose(90, n), 50 + 175 * n, 700, width=28)[0] for n in range(3)]
    assert words_of(read([text for lines in columns for text in lines])) == prose(90) + prose(90, 1) + prose(90, 2)


def test_an_overfull_line_does_not_cut_its_column():
    left, right = column(prose(120), 60, 700)[0], column(prose(120, 7), 320, 700)[0]
    left[5] = (*left[5][:3], left[5][3] + " overfullwords")
    words = words_of(read([*left, *right]))
    assert len(words) == 241 and words[-120:] == prose(120, 7)


def test_words_that_a_lines_end_cuts_are_put_together():
    lines = ["The miller had an extraor-", "dinary wheel, a well-", "known one, which he", "showed to a grand-", "mother of twenty-", "five children. Some Anglo-", "Saxon said grandmother too."]  # fmt: skip
    made = read([(72, 700 - 14 * n, 11, line) for n, line in enumerate(lines)])
    assert made.text == (
        "The miller had an extraordinary wheel, a well-known one, which he showed to a grandmother of twenty-five "
        "children. Some Anglo-Saxon said grandmother too."
    )


def test_a_word_cut_by_a_columns_end_is_put_together_and_its_paragraph_goes_on():
    left, low = column(prose(60), 60, 700)
    right = column(["tinued", *prose(60, 5)], 320, 700)[0]
    words = words_of(read([*left, (60, low, 10, "and the story con-"), *right]))
    assert words == [*prose(60), "and", "the", "story", "continued", *prose(60, 5)]
    assert read([*left, (60, low, 10, "and the story con-"), *right]).text.count("\n\n") == 0


@pytest.mark.parametrize("pages", [4, 7])
def test_running_heads_and_page_numbers_go_and_text_that_comes_twice_stays(pages: int):
    def page(number: int) -> list[Text]:
        lines = column(prose(100, number), 72, 740, width=80)[0]
        head = (72, 800, 8, "Annals of Milling, volume 7") if number % 2 else (300, 800, 8, f"The miller {number}")
        again = (72, 400, 10, "This line stands in the middle of every page.")
        return [head, *lines, again, (290, 30, 8, f"Page {number} of {pages}")]

    made = read(*(page(number) for number in range(pages)))
    assert "Annals" not in made.text and "miller" not in made.text and "Page" not in made.text
    assert made.text.count("This line stands in the middle of every page.") == pages
    assert len(words_of(made)) == pages * 109


@pytest.mark.parametrize("body", [0, 5], ids=["two sentences a page", "above five lines of text"])
def test_sentences_that_differ_only_in_figures_stay_at_the_top_of_pages(body: int):
    """Years that rise by one a page, as the pages' own numbers do."""

    def page(number: int) -> list[Text]:
        first = f"In the year {1990 + number} the mill sold {340 + 7 * number % 5} sacks of flour."
        rows = [first, f"The harvest of {1990 + number} was 50 tons.", *(f"line {n} of {number}" for n in range(body))]
        return [(72, 800 - 18 * n, 10, row) for n, row in enumerate(rows)]

    made = read(*(page(number) for number in range(6)))
    assert made.text.count("In the year") == made.text.count("The harvest of") == 6 and made.heads == 0
    assert [made.text.count(f"of {1990 + number} was") for number in range(6)] == [1] * 6


@pytest.mark.parametrize("pages", [3, 300])
@pytest.mark.parametrize("label", ["Label {}", "Certificate of attendance", "Certificate No. {}: this is to certify"])
def test_a_page_keeps_what_it_has_if_all_of_it_comes_again(pages: int, label: str):
    made = read(*([(72, 800, 10, label.format(number + 1))] for number in range(pages)))
    assert made.text.count(label.partition(" ")[0]) == pages and made.heads == 0


def test_titles_of_slides_with_figures_stay_and_page_numbers_of_any_kind_go():
    roman = ["i", "ii", "iii", "iv", "v", "vi"]

    def slide(number: int) -> list[Text]:
        figure = (number * 37) % 50
        return [
            (72, 800, 24, f"Harvest {1990 + figure}"),
            (72, 600, 12, f"Sacks of wheat: {figure}, and more of {roman[number]} kinds."),
            (72, 560, 12, "Sold to all bakers of the valley, who came with carts and mules."),
            (72, 30, 8, "The mills of the valley and of the hills beyond, in six pictures"),
            (520, 30, 8, roman[number]),
        ]

    made = read(*(slide(number) for number in range(6)))
    assert made.text.count("Harvest 19") + made.text.count("Harvest 20") == 6 and "pictures" not in made.text
    assert made.heads == 6 and len(words_of(made)) == 6 * (2 + 9 + 13)


def test_a_head_keeps_its_chapters_apart_and_goes_with_the_pages_own_number():
    def page(number: int) -> list[Text]:
        lines = column(prose(60, number), 72, 740, width=80)[0]
        head = f"Chapter {number // 2 + 1} of the book of mills and of those who built them, {number + 11}"
        return [(72, 800, 8, head), *lines, (290, 30, 8, f"{number + 11} of 30")]

    made = read(*(page(number) for number in range(8)))
    assert "Chapter" not in made.text and len(words_of(made)) == 8 * 60 and made.heads == 16


def test_the_number_of_a_single_page_goes_and_a_first_line_stays():
    made = read([*column(prose(60), 72, 700, width=80)[0], (290, 30, 8, "- 17 -")])
    assert words_of(made) == prose(60)


def test_a_table_is_read_row_by_row():
    rows = [["Mill", "Wheels", "Sacks"], ["Upper", "2", "310"], ["Lower", "1", "95"], ["Old", "3", "1,204"]]
    table = [(72 + 150 * i, 500 - 16 * n, 10, cell) for n, row in enumerate(rows) for i, cell in enumerate(row)]
    by_column = sorted(table, key=lambda text: (text[0], -text[1]))
    opened = read_pdf(pdf([[*column(prose(80), 72, 740, width=80)[0], *by_column]]))
    assert text_of(opened).text.endswith("Mill\tWheels\tSacks\nUpper\t2\t310\nLower\t1\t95\nOld\t3\t1,204")
    markdown = text_of(opened, "markdown").text
    assert "| Mill | Wheels | Sacks |\n| --- | --- | --- |\n| Upper | 2 | 310 |" in markdown


def test_paragraphs_are_told_apart_by_white_indents_and_short_lines():
    first, low = column(prose(60), 72, 740, width=80)
    second, lower = column(prose(60, 3), 72, low - 12, width=80)
    third = column(prose(60, 9), 72, lower, width=80)[0]
    third[0] = (90, *third[0][1:])
    assert [
        len(part.split())
        for part in read([*first, *second, *third], font=FONT.replace(b"Helvetica", b"Courier")).text.split("\n\n")
    ] == [60, 60, 60]


def test_ligatures_become_letters():
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Times-Roman /Encoding << /Differences [1 /fi /fl /ffi] >> >>"
    page = b"BT /F1 12 Tf 1 0 0 1 72 700 Tm (The of\\003ce is \\001ne and the \\002our white) Tj ET"
    page += b" BT /F1 12 Tf 1 0 0 1 72 600 Tm (o\\003ce) Tj ET"
    made = read(page, font=font)
    assert made.text.split("\n\n")[1] == "office" and "fine and the flour" in made.text


def test_turned_pages_and_turned_text_are_read_upright():
    lines = column(prose(80), 72, 740, width=80)[0]
    assert words_of(read(lines, rotate=90)) == words_of(read(lines)) == prose(80)
    turned = b"".join(b"BT /F1 10 Tf 0 1 -1 0 %d 72 Tm (%s) Tj ET\n" % (100 + 14 * n, text[3].encode()) for n, text in enumerate(lines))  # fmt: skip
    assert words_of(read(turned, rotate=90)) == prose(80)
    stamp = b"BT /F1 14 Tf 0 1 -1 0 30 200 Tm (stamped on the side) Tj ET\n"
    upright = b"".join(b"BT /F1 10 Tf 1 0 0 1 72 %d Tm (%s) Tj ET\n" % (text[1], text[3].encode()) for text in lines)
    assert words_of(read(stamp + upright)) == [*prose(80), "stamped", "on", "the", "side"]


def test_a_file_says_who_made_it_and_when():
    info = b"/Title (The  Mill) /Author (A. Miller) /Producer (by hand) /CreationDate (D:20240229101112Z)"
    assert read([(72, 700, 10, "words")], info=info).facts == {
        "title": "The Mill", "author": "A. Miller", "producer": "by hand", "published": "2024-02-29",
    }  # fmt: skip
    assert read([(72, 700, 10, "words")], info=b"/Title (untitled)").facts == {}


def test_pages_that_show_something_their_text_does_not_say_need_ocr():
    noise = [(72.0, 700.0 - 14 * n, 10.0, GARBLED[60 * n : 60 * n + 60]) for n in range(8)]
    unmapped = b"<< /Type /Font /Subtype /Type0 /BaseFont /None /Encoding /Identity-H /DescendantFonts [<< /Type /Font /Subtype /CIDFontType2 /BaseFont /None /CIDSystemInfo << /Registry (A) /Ordering (B) /Supplement 0 >> >>] >>"
    codes = b"BT /F1 10 Tf 1 0 0 1 72 700 Tm <" + b"".join(b"%04X" % (n + 3) for n in range(300)) + b"> Tj ET"
    lines = column(prose(80), 72, 740, width=80)[0]
    stamp = SCAN + b" BT /F1 8 Tf 1 0 0 1 400 20 Tm (Scanned by us) Tj ET"
    made = read(lines, SCAN, b"", noise, stamp)
    assert made.unread == [1, 3, 4] and words_of(made) == prose(80) and made.page_count == 5
    assert read(codes, font=unmapped).unread == [0]
    layer = SCAN + b" BT 3 Tr /F1 10 Tf 1 0 0 1 72 700 Tm (" + " ".join(prose(12)).encode() + b") Tj ET"
    assert read(layer).unread == []  # a scan that somebody has read already


def test_texts_given_for_pages_stand_in_their_places():
    opened = read_pdf(pdf([[(72, 700, 10, "First page.")], SCAN, [(72, 700, 10, "Last page.")]]))
    made = text_of(opened, "text", {1: "Read from\nthe picture.\n\nTwice."})
    assert made.text == "First page.\n\nRead from\nthe picture.\n\nTwice.\n\nLast page." and made.unread == []


def drawn_page(lines: list[list[tuple[str, float]]]) -> Page:
    """Letters of 10 points, each with its left edge, a line below the other."""
    letters = [(letter, left, 700 - 14 * n) for n, line in enumerate(lines) for letter, left in line]
    boxes = np.array([(left, base + 9, left + 6, base - 3) for _, left, base in letters], np.float32)
    places = np.array([(left, base) for _, left, base in letters], np.float32)
    codes = np.array([ord(letter) for letter, _, _ in letters], np.uint32)
    return Page(595, 842, codes, boxes, places, np.zeros(len(letters), np.float32))


def test_text_from_right_to_left_is_put_in_order_by_its_places():
    hebrew, end = "\u05e9\u05dc\u05d5\u05dd", 500.0
    first = [(letter, end - 6 * i) for i, letter in enumerate(hebrew)]  # each letter left of the one before it
    number = [(digit, 450.0 + 6 * i) for i, digit in enumerate("1948")]
    second = [(letter, 430.0 - 6 * i) for i, letter in enumerate(hebrew)]
    for line in ([*first, *number, *second], [*reversed(first), *number, *reversed(second)]):  # either order is met
        assert text_of(Opened(1, {}, [drawn_page([line])])).text == f"{hebrew} 1948 {hebrew}"


@pytest.mark.parametrize("draws_spaces", [True, False])
@pytest.mark.parametrize(
    "line",
    ["இது ஒரு சிறிய ஆலை", "ఇది ఒక చిన్న మర", "এটি একটি ছোট কল", "นี่คือ โรงสี เล็ก", "यह एक छोटी चक्की है"],
    ids=["Tamil", "Telugu", "Bengali", "Thai", "Hindi"],
)
def test_words_of_clusters_have_the_spaces_that_are_drawn_and_no_others(line: str, draws_spaces: bool):
    made = read(clustered([line, *[""] * 3, line], draws_spaces))
    assert made.text == f"{line}\n\n{line}"


def test_lines_of_scripts_without_spaces_are_joined_without_one():
    line = [(letter, 60.0 + 6 * i) for i, letter in enumerate("\u6c34\u8eca\u304c\u56de\u308b" * 8)]
    made = text_of(Opened(1, {}, [drawn_page([line, line])])).text
    assert made == "\u6c34\u8eca\u304c\u56de\u308b" * 16


numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_numbers_a_child_writes_become_a_text(data: st.DataObject):
    """A fork that a file has taken over may write anything."""
    count = data.draw(st.integers(0, 40))
    floats = lambda *shape: data.draw(arrays.arrays(np.float32, shape, elements=numbers))  # noqa: E731
    codes = data.draw(arrays.arrays(np.uint32, count))
    page = Page(*floats(2).tolist(), codes, floats(count, 4), floats(count, 2), floats(count))
    made = text_of(Opened(2, {}, [page, page]))
    made.text.encode()
    assert all(number in (0, 1) for number in made.unread)
