"""The fastText judge: trained by fastText, scored like fastText, the same whatever stands beside a text; and it says
which words did it."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.classifiers.fasttext.judge import (
    FastTextJudge,
    FastTextRecipe,
    as_fasttext,
    judge_of_file,
    preset,
    train_fasttext,
)
from gristmill.classifiers.fasttext.model import load
from gristmill.classifiers.fasttext.preprocessing import STEPS, TextSteps, without_marks
from gristmill.classifiers.judge import GOLDEN_TEXTS, Head, JudgeError, NotExplained, load_judge
from gristmill.classifiers.training import HeldOutShare, train_and_measure
from gristmill.classifiers.training_sets import labelled_texts
from gristmill.kernels.language.fasttext_words import only_words_plain
from tests.classifiers.labelled import GRADE, QUALITY, three_grades, two_kinds

pytest.importorskip("floret", reason="training a fasttext judge needs floret")
SMALL = FastTextRecipe(dimensions=12, word_ngrams=2, buckets=1000, learning_rate=0.5)
TEXTS = [
    "light bends slowly",
    "buy cart",
    "",
    " \n",
    "</s>",
    "été 水",
    "__label__good",
    "buy\u2028now",
    "\0",
    "a" * 1000,
]


@pytest.fixture(scope="module")
def judge() -> FastTextJudge:
    return train_fasttext(two_kinds(), QUALITY, SMALL)


@pytest.fixture(scope="module")
def with_ngrams() -> FastTextJudge:
    return train_fasttext(two_kinds(), QUALITY, replace(SMALL, shortest_ngram=1, longest_ngram=3, word_ngrams=3))


@pytest.fixture(scope="module")
def graded() -> FastTextJudge:
    return train_fasttext(three_grades(), GRADE, SMALL)


def column_of(texts: list[str | None], kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(texts, kind or pa.string())


def test_it_learns(judge):
    score = judge.score(column_of(["reason explains theory under energy", "cart login sale cookies accept"]))["quality"]
    assert score.dtype == np.float32 and score[0] > 0.9 and score[1] < 0.1


def test_scores_are_those_of_the_fasttext_package(judge, with_ngrams, graded, tmp_path):
    fasttext = pytest.importorskip("fasttext")
    texts = [*TEXTS, *GOLDEN_TEXTS, *two_kinds(40, seed=9).texts.to_pylist()]
    for one in (judge, with_ngrams, graded):
        path = tmp_path / "model.bin"
        path.write_bytes(bytes(one.model.model.file))
        package = fasttext.load_model(str(path))
        found = one.outputs(column_of(texts))[one.head.name]
        for i, text in enumerate(texts):
            theirs = {
                label[9:]: score for score, label in package.f.predict(only_words_plain(text) + "\n", 3, 0.0, "strict")
            }
            mine = dict(zip(one.head.labels, found[i].tolist() if found.ndim == 2 else [None, found[i]], strict=True))
            for label, score in mine.items():
                assert score is None or score == pytest.approx(min(theirs[label], 1), abs=1e-6)


def test_the_same_texts_seed_and_recipe_give_the_same_bytes(judge):
    again = train_fasttext(two_kinds(), QUALITY, SMALL)
    other = train_fasttext(two_kinds(), QUALITY, replace(SMALL, seed=1))
    assert again.model.model.file.tobytes() == judge.model.model.file.tobytes() and again.card == judge.card
    assert other.model.model.file.tobytes() != judge.model.model.file.tobytes()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([*TEXTS, None]) | st.text(), min_size=1, max_size=8), st.integers(0, 7))
def test_scores_do_not_depend_on_what_stands_beside(judge, texts, start):
    whole = judge.score(column_of(texts))["quality"]
    assert np.isfinite(whole).all() and ((whole >= 0) & (whole <= 1)).all()
    assert [judge.score(column_of([text]))["quality"][0] for text in texts] == whole.tolist()
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert judge.score(column_of(texts, kind).slice(start))["quality"].tolist() == whole[start:].tolist()
    chunked = pa.chunked_array([column_of(texts[:start]), column_of(texts[start:])])
    assert judge.score(chunked)["quality"].tolist() == whole.tolist()


def test_no_text_at_all(judge):
    assert judge.score(column_of([]))["quality"].shape == (0,)


def test_null_is_empty_and_so_is_space(judge):
    score = judge.score(column_of([None, "", " \n\t", "</s>", "__label__bad __label__good"]))["quality"]
    assert len(set(score.tolist())) == 1


def test_a_text_cannot_end_itself_or_train_as_what_it_says():
    rows = two_kinds()
    poisoned = [
        f"__label__good </s> __label__good {text}" if label == "bad" else text
        for text, label in zip(rows.texts.to_pylist(), rows.labels.to_pylist(), strict=True)
    ]
    clean = train_fasttext(rows, QUALITY, SMALL)
    table = pa.table({"text": poisoned, "label": rows.labels})
    assert (
        train_fasttext(labelled_texts(table), QUALITY, SMALL).model.model.file.tobytes()
        == clean.model.model.file.tobytes()
    )
    first, second = clean.score(column_of(["reason </s> buy cart login", "reason buy cart login"]))["quality"]
    assert first == second


def test_a_judge_comes_back_as_it_was(judge, graded, tmp_path):
    for one in (judge, graded):
        one.save(tmp_path / one.head.name)
        back = load_judge(tmp_path / one.head.name)
        assert back.card == one.card
        assert sorted(path.name for path in (tmp_path / one.head.name).iterdir()) == ["judge.json", "model.bin"]
        for name, values in one.outputs(column_of(TEXTS)).items():
            assert back.outputs(column_of(TEXTS))[name].tolist() == values.tolist()


def test_classes(graded):
    texts = column_of(TEXTS)
    chances = graded.probabilities(texts)["grade"]
    assert chances.shape == (len(TEXTS), 3) and np.allclose(chances.sum(axis=1), 1, atol=1e-4)
    assert graded.score(texts)["grade"] == pytest.approx(chances @ np.arange(3), abs=1e-6)
    poor, fine = graded.score(column_of(["buy cart login sale click price", "because theory reason explains energy"]))[
        "grade"
    ]
    assert poor < 0.5 and fine > 1.5


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(["light", "buy", "cart", "été", "水は", "unknown", "a", "ab", ","]), max_size=12).map(
        " ".join
    )
    | st.text(max_size=30)
)
def test_the_parts_of_words_sum_to_the_log_odds(judge, with_ngrams, text):
    for one in (judge, with_ngrams):
        good = float(one.score(column_of([text]))["quality"][0])
        logit = math.log(good / (1 - good)) if 0 < good < 1 else math.copysign(20, good - 0.5)
        parts = one.explain(text, "quality", most=10**6)
        added = 2e-5 / max(
            min(good, 1 - good), 1e-5
        )  # fastText adds 1e-5 to a probability, which its logit feels more near the ends
        assert sum(part for _, part in parts) == pytest.approx(logit, rel=2e-3, abs=2e-3 + added)
        assert {word for word, _ in parts} <= {*only_words_plain(text).split(" "), "(end of text)"}


def test_words_that_made_a_score(judge, graded):
    first = judge.explain("the buy of energy", "quality")
    assert {word: part > 0 for word, part in first if word in ("buy", "energy")} == {"buy": False, "energy": True}
    assert [abs(part) for _, part in first] == sorted((abs(part) for _, part in first), reverse=True)
    assert len(judge.explain("the buy of energy", "quality", most=2)) == 2
    assert dict(graded.explain("the buy of energy", "grade"))["energy"] > 0
    with pytest.raises(JudgeError, match="no head 'grade'; it has quality"):
        judge.explain("text", "grade")


def test_a_file_that_fasttext_trained_elsewhere_is_a_judge(judge, tmp_path):
    path = tmp_path / "theirs.bin"
    path.write_bytes(judge.model.model.file.tobytes())
    head = replace(QUALITY, name="theirs")
    theirs = judge_of_file(path, head, TextSteps())
    assert theirs.score(column_of(TEXTS))["theirs"].tolist() == judge.score(column_of(TEXTS))["quality"].tolist()
    theirs.save(tmp_path / "saved")
    assert load_judge(tmp_path / "saved").card.head("theirs") == head
    with pytest.raises(JudgeError, match="has the labels cc, hq, and the model"):
        judge_of_file(path, Head("quality", "probability", ("cc", "hq"), ""), TextSteps())
    path.write_bytes(b"no model")
    with pytest.raises(JudgeError, match="not a fastText classifier"):
        judge_of_file(path, head, TextSteps())


def test_a_damaged_model_under_hashes_that_fit_is_refused(judge, tmp_path):
    class Damaged(FastTextJudge):
        def write(self, folder: Path) -> None:
            (folder / "model.bin").write_bytes(self.model.model.file.tobytes()[:200])

    Damaged(judge.card, judge.model, judge.steps).save(tmp_path / "x")
    with pytest.raises(JudgeError, match="not a fastText classifier, or a damaged one"):
        load_judge(tmp_path / "x")


def test_a_quantised_model_does_not_explain(judge):
    with pytest.raises(NotExplained, match="not quantised"):
        replace(judge, model=replace(judge.model, model=judge.model.model._replace(codes_each=2))).explain(
            "x", "quality"
        )


@pytest.mark.parametrize(
    ("labelled", "head", "recipe", "reason"),
    [
        (two_kinds(3), Head("x", "regression", (), "", 0, 5), SMALL, "no regression"),
        (two_kinds(3), Head("x", "probability", ("a b", "good"), ""), SMALL, "no word of fastText's"),
        (two_kinds(3), Head("x", "probability", ("__label__bad", "good"), ""), SMALL, "no word of fastText's"),
        (two_kinds(3), Head("x", "classes", ("bad", "good", "best"), "", 0, 2), SMALL, "no text has the label 'best'"),
        (two_kinds(3), QUALITY, replace(SMALL, steps=("upper",)), "no step 'upper' before fastText; known are squeeze"),
        (two_kinds(3), QUALITY, replace(SMALL, steps=("pieces",)), "go together; one of them is missing"),
        (replace(two_kinds(3), weights=np.array([1.0, 2.0] * 3)), QUALITY, SMALL, "the same weight"),
    ],
)
def test_what_cannot_be_trained(labelled, head, recipe, reason):
    with pytest.raises(JudgeError, match=reason):
        train_fasttext(labelled, head, recipe)


def test_models_of_florets_other_mode_are_refused(judge):
    content = judge.model.model.file.tobytes()
    with pytest.raises(JudgeError, match="none of fastText's"):
        as_fasttext(content[:52] + (2).to_bytes(4, "little") + (1).to_bytes(4, "little") + content[52:])
    assert as_fasttext(content[:52] + (1).to_bytes(4, "little") * 2 + content[52:]) == content


def test_presets():
    assert preset("dclm") == FastTextRecipe(learning_rate=0.1, dimensions=100, epochs=5, word_ngrams=2, least_count=1)
    ultra = preset("ultra_fineweb", tokenizer="{}")
    assert (ultra.dimensions, ultra.epochs, ultra.word_ngrams, ultra.least_count) == (256, 3, 3, 5)
    assert ultra.steps == ("squeeze", "lower", "without_marks", "pieces", "escapes")
    assert preset("ultra_fineweb").steps == ("squeeze", "lower", "without_marks", "escapes_apart")
    with pytest.raises(JudgeError, match="no preset 'other'; there are dclm, ultra_fineweb"):
        preset("other")


def test_steps():
    assert STEPS["squeeze"]("a\n\n\n\nb   c\n\nd") == "a\n\nb c\n\nd"
    assert without_marks("Été Ångström ﬁ n\u0303 한 ½ \u0301") == "Ete Angstrom fi n " + "\u1112\u1161\u11ab 1\u20442 "
    assert STEPS["escapes"]("a\n\tb") == "a\\n\\tb" and STEPS["escapes_apart"]("a\nb") == "a \\n b"
    assert TextSteps(("lower", "escapes_apart")).text("A\nB").split() == ["a", "\\n", "b"]


@given(st.text())
def test_marks_are_those_of_unicode(text):
    import unicodedata

    expected = "".join(c for c in unicodedata.normalize("NFKD", text) if unicodedata.category(c) != "Mn")
    assert sorted(without_marks(text)) == sorted(expected)


def test_a_million_marks_in_a_row_take_no_time():
    assert without_marks("\u302e\U0001d16d" * 500_000) == "\u302e\U0001d16d" * 500_000


def small_tokenizer() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"Ġ": 0, "a": 1, "b": 2, "ab": 3, "Ċ": 4, "Ġab": 5}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("Ġ", "ab")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


def test_pieces_of_a_tokenizer_travel_with_the_judge(tmp_path):
    steps = TextSteps(("pieces", "escapes"), small_tokenizer())
    assert steps.text("ab ab\na").split() == ["ab", "ab", "\\n", "a"]
    recipe = replace(SMALL, steps=steps.names)
    table = pa.table({"text": ["ab ab", "b a b", "ab"] * 5, "label": ["good", "bad", "good"] * 5})
    trained = train_fasttext(labelled_texts(table), QUALITY, recipe, small_tokenizer())
    trained.save(tmp_path / "x")
    assert (
        load_judge(tmp_path / "x").score(column_of(["abab", "b"]))["quality"].tolist()
        == trained.score(column_of(["abab", "b"]))["quality"].tolist()
    )
    (tmp_path / "x" / "tokenizer.json").write_text(small_tokenizer().replace('"Ġab":5', '"Ġba":5'))
    with pytest.raises(JudgeError, match=r"tokenizer.json is not the file that was saved"):
        load_judge(tmp_path / "x")
    (tmp_path / "x" / "tokenizer.json").unlink()
    with pytest.raises(JudgeError, match=r"tokenizer.json is missing"):
        load_judge(tmp_path / "x")
    with pytest.raises(JudgeError, match="none that the tokenizers package reads"):
        TextSteps(("pieces",), "{}")


def test_figures_are_of_groups_that_were_held_out():
    rows = two_kinds()
    seen = []

    def train(texts):
        seen.append(set(texts.groups.to_pylist()))
        return train_fasttext(texts, QUALITY, SMALL)

    judge = train_and_measure(rows, QUALITY, train, HeldOutShare(0.3, seed=1))
    facts = judge.card.metrics["quality"]
    assert facts["texts"] == judge.card.training["held_out"]["texts"] > 20
    assert facts["texts"] + judge.card.training["texts"] == len(rows)
    assert 0 < len(seen[0]) < 17 and facts["auc"] > 0.9
    graded = train_and_measure(three_grades(), GRADE, lambda texts: train_fasttext(texts, GRADE, SMALL))
    assert graded.card.metrics["grade"]["kappa_quadratic"] > 0.5


SCORE = """
import sys, pyarrow as pa
from gristmill.classifiers.judge import load_judge
print(load_judge(sys.argv[1]).score(pa.array(["light bends", "buy cart", ""]))["quality"].tolist(), "torch" in sys.modules, "sklearn" in sys.modules)
"""


def test_any_process_scores_the_same_and_needs_neither_torch_nor_scikit_learn(judge, tmp_path):
    judge.save(tmp_path / "x")
    expected = judge.score(column_of(["light bends", "buy cart", ""]))["quality"].tolist()
    for seed in ("0", "7"):
        done = subprocess.run(
            [sys.executable, "-c", SCORE, str(tmp_path / "x")],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": "", "HOME": str(Path.home())},
            cwd=Path(__file__).parents[2],
        )
        assert done.stdout.strip() == f"{expected} False False"


def test_the_mapped_model_is_shared_not_copied(judge, tmp_path):
    judge.save(tmp_path / "x")
    back = load_judge(tmp_path / "x")
    assert not back.model.model.file.flags.owndata and back.model is load(tmp_path / "x" / "model.bin")
    shutil.rmtree(tmp_path / "x")
