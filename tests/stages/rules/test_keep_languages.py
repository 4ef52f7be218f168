"""Languages that stay, thresholds for all or for each, and names that no model would say are refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages.rules.language import KeepLanguages
from gristmill.stages.stage import Signals

TABLE = pa.record_batch(
    {
        "language": ["en", "en", "fr", "fr", "de", "unknown", "en"],
        "language_score": pa.array([0.9, 0.6, 0.5, 0.3, 0.99, 0.0, 0.65], pa.float32()),
    }
)


def reasons(rule: KeepLanguages) -> list[str | None]:
    verdict = rule.verdict(Signals(TABLE))
    return [verdict.reason(row) for row in range(len(verdict))]


def test_one_threshold():
    low, other = "low_score", "other_language"
    assert reasons(KeepLanguages(languages=["en"])) == [None, low, other, other, other, "unknown_language", None]
    assert reasons(KeepLanguages(languages=["de", "en"], at_least=0)) == [
        None,
        None,
        other,
        other,
        None,
        "unknown_language",
        None,
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_no_language_is_an_unknown_one(kind):
    rows = pa.record_batch(
        {"language": pa.array(["en", None]).cast(kind), "language_score": pa.array([0.9, None], pa.float32())}
    )
    verdict = KeepLanguages(languages=["en"]).verdict(Signals(rows))
    assert [verdict.reason(row) for row in range(2)] == [None, "unknown_language"]


def test_no_score_is_none():
    rows = pa.record_batch({"language": ["en", "en"], "language_score": pa.array([0.9, None], pa.float32())})
    for least, reason in ((0.5, "low_score"), (0.0, None)):
        verdict = KeepLanguages(languages=["en"], at_least=least).verdict(Signals(rows))
        assert [verdict.reason(row) for row in range(2)] == [None, reason]


def test_the_detail_is_the_language_found():
    verdict = KeepLanguages(languages=["en"]).verdict(Signals(TABLE))
    assert verdict.details == {1: "en", 2: "fr", 3: "fr", 4: "de"}


def test_thresholds_of_their_own(tmp_path):
    path = tmp_path / "thresholds.yaml"
    path.write_text('fr: 0.4\nen: 0.95\n"no": 0.1\n')
    rule = KeepLanguages(languages=["en", "fr"], thresholds={"en": 0.5}, thresholds_file=str(path))
    assert reasons(rule) == [None, None, None, "low_score", "other_language", "unknown_language", None]


def test_a_code_of_two_letters_in_a_file_of_thresholds_serves_labels_with_a_script(tmp_path):
    path = tmp_path / "thresholds.yaml"
    path.write_text("de: 0.9\nen: 0.9\neng_Latn: 0.1\n")
    rule = KeepLanguages(languages=["deu_Latn", "eng_Latn", "fra_Latn"], thresholds_file=str(path))
    assert rule.lowest() == [0.9, 0.1, 0.65]


@pytest.mark.parametrize("text", ["- en", "en: high", "en: 2", "no: 0.5", "en: [", "1: 0.5", "en: .nan", "eng: 0.5"])
def test_a_file_of_thresholds_that_is_wrong(text, tmp_path):
    path = tmp_path / "thresholds.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match="thresholds_file"):
        KeepLanguages(languages=["en"], thresholds_file=str(path))


def test_a_file_of_thresholds_that_is_absent(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        KeepLanguages(languages=["en"], thresholds_file=str(tmp_path / "absent.yaml"))


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("eng", "'en'"),
        ("English", "'eng_Latn'"),
        ("EN", "'en'"),
        ("en-US", "'en'"),
        ("eng_latn", "'eng_Latn'"),
        ("__label__en", "'en'"),
        ("ger", "'de'"),
    ],
)
def test_a_name_that_no_model_says(name, suggested):
    with pytest.raises(SettingsError, match=suggested):
        KeepLanguages(languages=[name])


@pytest.mark.parametrize("name", ["en", "als", "ceb", "eng_Latn", "cmn_Hani", "und_Latn", "zh", "sh"])
def test_names_that_models_say(name):
    assert KeepLanguages(languages=[name]).languages == [name]


@pytest.mark.parametrize(
    "settings", [{}, {"languages": []}, {"languages": ["unknown"]}, {"languages": ["en"], "thresholds": {"fr": 0.5}}]
)
def test_settings_that_mean_nothing(settings):
    with pytest.raises(SettingsError):
        KeepLanguages(**settings)
