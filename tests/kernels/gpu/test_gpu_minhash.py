"""MinHash by Triton has the bits of the reference, on any text and on bytes that are none: on a GPU, or in Triton's
interpreter where there is none."""

import codecs
import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st

torch = pytest.importorskip("torch", reason="gristmill.kernels.gpu needs torch, of the extra `gpu`")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # must be there when triton is imported
pytest.importorskip("triton", reason="gristmill.kernels.gpu needs triton, of the extra `gpu`")

from gristmill.kernels.base.columns import TextColumn, text_column  # noqa: E402
from gristmill.kernels.duplicates import minhash  # noqa: E402
from gristmill.kernels.duplicates.minhash_rules import bands_plain, signature_plain  # noqa: E402
from gristmill.kernels.gpu.minhash import band_hashes, banded, sign, signatures  # noqa: E402
from gristmill.kernels.gpu.tokens import LARGEST_PIECE, Tiles, device_tokens  # noqa: E402
from gristmill.kernels.gpu.transfer import column_tensor, cut, default_device  # noqa: E402
from gristmill.kernels.words.token_rules import shingles_plain  # noqa: E402

FEW = settings(max_examples=8)  # the interpreter takes up to a second each
SMALL = Tiles(characters=32, character_warps=1, bytes=64, byte_warps=1, tokens=32, token_warps=1)

# Letters, marks and signs at which the rules turn: scripts with and without spaces, marks of both, capitals of one to
# four bytes, some whose lower case is longer or shorter, digits, what only separates.
TRICKY = "aZ09 .-_\n\0éÉßẞİıǅſKÅΣςЖжאبّ\u0301\u0e31\u0e33กไທខា漢字かカー々가한𠀀𐐀𐐨𞤀𝒜½²Ⅷ\u200b\u200d\ufffd\ud7ff\ue000😀👍🏽\U0010ffff"
TEXTS = st.lists(
    st.one_of(
        st.text(max_size=30),
        st.text(alphabet=TRICKY, max_size=150),
        st.lists(
            st.sampled_from(["a", "Word", "counterrevolutionaries", "x" * 63, "É", "漢", "ไทย", " ", ", ", "\u0301"]),
            max_size=60,
        ).map("".join),
    ),
    max_size=5,
)
SCRIPTS = [
    "The quick brown Fox jumps over the lazy Dog.", "Съешь ЖЕ ещё этих мягких французских булок", "Ξεσκεπάζω τὴν ψυχοφθόρα Βδελυγμία",
    "نص حكيم له سر قاطع وذو شأن عظيم", "דג סקרן שט בים מאוכזב ולפתע מצא חברה", "ऋषियों को सताने वाले दुष्ट राक्षसों", "天地玄黃 宇宙洪荒 日月盈昃",
    "いろはにほへと ちりぬるを カタカナ", "다람쥐 헌 쳇바퀴에 타고파", "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า", "ຂອບໃຈຫຼາຍໆ", "ខ្ញុំអាចញ៉ាំកញ្ចក់បាន", "ကျွန်တော် မှန်စား",
    "Ĳsselmeer ǅ ŉ İstanbul ẞ K Å", "𐐔𐐯𐑅𐐨𐑉𐐯𐐻 𞤀𞤣𞤤𞤢𞤥", "😀👍🏽 1½ ² Ⅷ ٣٤", "e\u0301 漢\u0301a กa\u0301a", "",
]  # fmt: skip


def column_of(texts):
    return text_column(pa.array(["left out É漢", *texts, "left out too"]).slice(1, len(texts)))


def wanted(texts, width, places, seed, bands, rows):
    shingles = [shingles_plain(text, width, seed) for text in texts]
    values = [signature_plain(found, places) for found in shingles]
    return values, [bands_plain(found, bands, rows) for found in values], [len(found) for found in shingles]


def signed(column, width, places, seed, bands, rows):
    hashes, counts = band_hashes(column, width=width, bands=bands, rows=rows, places=places, seed=seed)
    values = signatures(column, width=width, places=places, seed=seed)
    assert (hashes.dtype, counts.dtype, values.dtype) == (np.uint64, np.int64, np.uint32)
    return values.tolist(), hashes.tolist(), counts.tolist()


@FEW
@given(TEXTS, st.integers(1, 7), st.sampled_from([1, 5, 16]), st.integers(0, 2**64 - 1))
@example(
    [
        "x" * 62 + "漢",
        "x" * 63 + "漢a",
        "a" * 200,
        "É" * 100,
        "\u0301a",
        "กa\u0301a漢\u0301a",
        "\0",
        "a\0b",
        "",
        "a b c",
    ],
    5,
    16,
    1,
)
def test_signatures_bands_and_counts_equal_the_plain_twin(texts, width, places, seed):
    bands, rows = max(places // 4, 1), min(places, 3)
    assert signed(column_of(texts), width, places, seed, bands, rows) == wanted(texts, width, places, seed, bands, rows)


@pytest.mark.parametrize(
    "texts", [SCRIPTS, ["漢字かな" * 150, "é" * 700 + " word" * 99, "y" * 1500 + " a b", "to be or not " * 99]]
)
def test_all_scripts_and_documents_longer_than_a_tile(texts):
    assert signed(column_of(texts), 5, 32, 0, 8, 4) == wanted(texts, 5, 32, 0, 8, 4)


def bytes_separate(error):
    return "\0" * (error.end - error.start), error.end


codecs.register_error("gpu bytes separate", bytes_separate)


@FEW
@given(
    st.lists(
        st.one_of(st.binary(max_size=20), st.text(alphabet=TRICKY, max_size=50).map(lambda text: text.encode()[1:-1])),
        max_size=6,
    )
)
@example(
    [
        b"a\xc3",
        b"\xa9b",
        b"\xe0\x81\x81a",
        b"\xed\xa0\x80a",
        b"\xf0\x80\x81\x81",
        b"\xf4\x90\x80\x80",
        b"\xe6\xbc",
        b"\xa2",
        b"\xf0\x9f",
    ]
)
def test_bytes_that_are_no_character_separate(pieces):
    """Each by itself; nothing is read out of the next document."""
    texts = [piece.decode("utf-8", "gpu bytes separate") for piece in pieces]
    assert signed(text_column(pa.array(pieces, pa.binary())), 1, 8, 0, 2, 4) == wanted(texts, 1, 8, 0, 2, 4)


def test_many_documents_in_any_pieces_lanes_and_tiles_are_the_same():
    random = np.random.default_rng(3)
    texts = [
        " ".join(random.choice(["red", "Grün", "青", "blue sky", "ไทย"], random.integers(0, 12))) for _ in range(24)
    ]
    column = column_of(texts)
    hashes, counts = minhash.band_hashes(column, width=3, bands=4, rows=2, seed=9)
    for piece_bytes, lanes, tiles in ((99, 1, Tiles()), (300, 3, SMALL)):
        found, found_counts = sign(
            column_tensor(column),
            column.offsets,
            banded(4, 2, 8),
            3,
            8,
            9,
            default_device(),
            tiles=tiles,
            piece_bytes=piece_bytes,
            lanes=lanes,
        )
        assert found.tolist() == hashes.tolist() and found_counts.tolist() == counts.tolist()


def test_pieces_are_whole_documents_within_the_limits():
    offsets = np.array([7, 7, 10, 30, 31, 32, 33, 33], np.int64)
    assert list(cut(offsets, 4, 2)) == [(0, 2), (2, 3), (3, 5), (5, 7)]
    assert list(cut(offsets, 1000, 1000)) == [(0, 7)]
    assert list(cut(offsets[:1], 4, 2)) == []


def test_a_column_without_documents_or_without_text():
    hashes, counts = band_hashes(text_column(pa.array([], pa.string())), bands=2, rows=2)
    assert hashes.shape == (0, 2) and counts.shape == (0,)
    assert signed(text_column(pa.array(["", None, ""])), 5, 4, 0, 2, 2) == wanted([""] * 3, 5, 4, 0, 2, 2)


def test_what_cannot_be_is_refused():
    column = column_of(["a b"])
    with pytest.raises(ValueError, match="at least one"):
        band_hashes(column, width=0, bands=2, rows=2)
    with pytest.raises(ValueError, match="do not fit"):
        band_hashes(column, bands=5, rows=2, places=9)
    with pytest.raises(ValueError, match="between 1 and"):
        signatures(column, places=0)
    with pytest.raises(ValueError, match="no document may be longer"):
        device_tokens(torch.empty(0, dtype=torch.uint8), LARGEST_PIECE + 1, torch.zeros(2, dtype=torch.int64), SMALL)


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU here; the other tests ran in Triton's interpreter"
)
def test_on_a_gpu_text_from_any_memory_is_signed_as_the_processor_does():
    random = np.random.default_rng(11)
    words = ["".join(random.choice(list("abcdeéß漢字ไท"), random.integers(1, 12))) for _ in range(3000)]
    texts = [" ".join(random.choice(words, random.integers(0, 1500))) for _ in range(2000)] + [
        "same " * 2_000_000,
        "z" * 3_000_000,
    ]
    column = column_of(texts)
    hashes, counts = minhash.band_hashes(column, bands=16, rows=8, seed=4)
    data = column_tensor(TextColumn(column.data, column.offsets))
    for text in (data, data.pin_memory(), data.cuda()):
        found, found_counts = sign(
            text, column.offsets, banded(16, 8, 128), 5, 128, 4, default_device(), piece_bytes=1 << 20
        )
        assert (found == hashes).all() and (found_counts == counts).all()
