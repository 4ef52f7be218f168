"""`maintain import --from transformers`: published classifiers score as in transformers, and nothing of a folder is
run, unpickled or opened outside of it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from tokenizers import pre_tokenizers

from gristmill.classifiers.judge import load_judge
from gristmill.classifiers.neural.judge import NeuralJudge
from gristmill.classifiers.neural.text_tokens import TextTokenizer, read_tokenizer
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.interchange.imports import Importing, bring_in
from tests.classifiers import neural_makings as makings

SIZES = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2} | {
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
TOXIC = ("toxic", "severe toxic", "obscene", "threat", "insult", "identity-hate")
MULTI = {"problem_type": "multi_label_classification", "id2label": dict(enumerate(TOXIC))}
# As they are published: FineWeb-Edu's, unitary/toxic-bert, s-nlp/roberta_toxicity_classifier, DistilBERT on two labels,
# a DeBERTa v3 on three; ModernBERT on a value of its own.
PUBLISHED: dict[str, tuple[str, dict[str, Any], Importing]] = {
    "fineweb_edu": (
        "Bert",
        {"num_labels": 1, "problem_type": "regression"},
        Importing(head="educational_value", between="0,5"),
    ),
    "toxic_bert": ("Bert", MULTI, Importing()),
    "toxic_roberta": (
        "Roberta",
        {"id2label": {0: "neutral", 1: "toxic"}, "max_position_embeddings": 66, "type_vocab_size": 1},
        Importing(head="toxicity", good_label="toxic"),
    ),
    "distilbert": (
        "DistilBert",
        {"id2label": {0: "POSITIVE", 1: "NEGATIVE"}},
        Importing(head="feeling", good_label="POSITIVE"),
    ),
    "distilbert_multi": ("DistilBert", MULTI, Importing(head="of_")),
    "deberta_v3": (
        "DebertaV2",
        {"id2label": {0: "High", 1: "Low", 2: "Medium"}, "relative_attention": True, "share_att_key": True}
        | {"pos_att_type": "p2c|c2p", "position_buckets": 16, "norm_rel_ebd": "layer_norm"}
        | {"position_biased_input": False},
        Importing(classes="Low,Medium,High"),
    ),
    "modernbert": (
        "ModernBert",
        {"num_labels": 1, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2}
        | {"eos_token_id": 3},
        Importing(between="-2,2"),
    ),
}


EXPECTED: dict[str, Callable[[torch.Tensor], dict[str, torch.Tensor]]] = {
    "fineweb_edu": lambda logits: {"educational_value": logits[:, 0].clamp(0, 5)},
    "toxic_roberta": lambda logits: {"toxicity": logits.softmax(-1)[:, 1]},
    "distilbert": lambda logits: {"feeling": logits.softmax(-1)[:, 0]},
    "distilbert_multi": lambda logits: {f"of_{name}": chances for name, chances in of_each_label(logits).items()},
    "deberta_v3": lambda logits: {"quality": logits.softmax(-1)[:, [1, 2, 0]]},
    "modernbert": lambda logits: {"quality": logits[:, 0].clamp(-2, 2)},
}


MIDDLE = {"fineweb_edu": 2.5, "modernbert": 0.0}


def of_each_label(logits: torch.Tensor) -> dict[str, torch.Tensor]:
    names = ("toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate")
    return dict(zip(names, logits.sigmoid().T, strict=True))


def published(name: str, folder: Path) -> torch.nn.Module:
    kind, more, _ = PUBLISHED[name]
    torch.manual_seed(4)
    config = getattr(transformers, f"{kind}Config")(**(SIZES | more))
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    folder.mkdir()
    (folder / "tokenizer.json").write_text(makings.tokenizer_json())
    if name in MIDDLE:  # where its range does not cut
        model.classifier.bias.data += MIDDLE[name] - logits_of(model, folder, ["a lens", "buy now"]).mean()
    model.save_pretrained(folder)
    made: torch.nn.Module = model
    return made


def logits_of(model: torch.nn.Module, folder: Path, texts: list[str]) -> torch.Tensor:
    """Padded together."""
    tokens = read_tokenizer(folder / "tokenizer.json", 64).tokens(pa.array(texts))
    rows = torch.from_numpy(tokens.ids).long().split(tokens.lengths.tolist())
    padding = 1 if model.config.model_type == "roberta" else 0
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True)
    places = {"position_ids": (mask.cumsum(1) * mask + 1).long()} if padding else {}
    with torch.no_grad():
        logits: torch.Tensor = model(ids, attention_mask=mask, **places).logits
    return logits


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_classifiers_score_as_in_transformers(name: str, tmp_path: Path) -> None:
    model = published(name, tmp_path / "model")
    said = bring_in(tmp_path / "model", tmp_path / "judge", "transformers", PUBLISHED[name][2])
    texts = makings.labelled_table(40, 2)["text"].to_pylist()
    logits = logits_of(model, tmp_path / "model", texts)
    judge = load_judge(tmp_path / "judge")
    found = judge.outputs(pa.array(texts))
    expected = (EXPECTED.get(name) or of_each_label)(logits)
    assert list(found) == list(expected) == [head.name for head in judge.card.heads]
    for head, scores in expected.items():
        assert head in said and np.abs(found[head] - scores.numpy()).max() < 1e-4 and found[head].std() > 0.005
    assert logits.std(0).min() > 0.05  # texts differ
    assert judge.card.attribution == (f"imported from {tmp_path / 'model'}",)
    if name == "toxic_bert":
        assert judge.card.head("severe_toxic").labels == ("not severe toxic", "severe toxic")
        assert "severe_toxic (probability, labels not severe toxic, severe toxic)" in said


def test_labels_without_an_order_are_told_apart_unless_said_otherwise(tmp_path: Path) -> None:
    model = published("deberta_v3", tmp_path / "model")
    bring_in(tmp_path / "model", tmp_path / "judge", "transformers", Importing(head="tier"))
    judge = load_judge(tmp_path / "judge")
    assert judge.card.head("tier").kind == "labels" and judge.card.head("tier").labels == ("High", "Low", "Medium")
    texts = ["the lens bends light", "buy now"]
    expected = logits_of(model, tmp_path / "model", texts).softmax(-1)
    assert np.abs(judge.outputs(pa.array(texts))["tier"] - expected.numpy()).max() < 1e-4


def test_a_tokenizer_of_deberta_gives_the_ids_of_transformers(tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ,.!?"
    pieces = [("[PAD]", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[UNK]", 0.0), ("\u2581", -2.0), ("\u2581the", -3.0)]
    pieces += [(f"\u2581{word}", -4.0 - i / 9) for i, word in enumerate(("lens", "light", "of", "glass"))]
    pieces += [(letter, -8.0) for letter in letters] + [("[MASK]", 0.0)]
    theirs = transformers.DebertaV2Tokenizer(vocab=pieces, unk_id=3)
    theirs.save_pretrained(tmp_path)
    texts = ["the lens of glass", "", "  The\n\nLight,  of  \t the lens! ", "caf\u00e9 \u6c34 glass", "x" * 500]
    same_ids(read_tokenizer(tmp_path / "tokenizer.json", 64), theirs, texts)


@pytest.mark.parametrize("cased", [False, True])
def test_a_vocabulary_of_word_pieces_is_a_tokenizer_too(cased: bool, tmp_path: Path) -> None:
    published("toxic_bert", tmp_path / "model")
    made = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    (tmp_path / "model" / "tokenizer.json").unlink()
    (tmp_path / "model" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in made["model"]["vocab"]))
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not cased}))
    judge = published_judge(tmp_path, PUBLISHED["toxic_bert"][2])
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path / "model")
    same_ids(judge.tokenizer, theirs, ["the Lens bends light", "", "sale! Caf\u00e9 \u6c34 x", "zz top " * 50])


def test_byte_pairs_of_roberta_are_a_tokenizer_too(tmp_path: Path) -> None:
    published("toxic_roberta", tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *letters, "th", "the", "\u0120the", "<mask>"]
    (tmp_path / "model" / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (tmp_path / "model" / "merges.txt").write_text("#version: 0.2\nt h\nth e\n\u0120 the\n")
    judge = published_judge(tmp_path, PUBLISHED["toxic_roberta"][2])
    theirs = transformers.RobertaTokenizer.from_pretrained(tmp_path / "model")
    same_ids(judge.tokenizer, theirs, ["the lens of the light", "", "Caf\u00e9 \u6c34\n\n the", "zz " * 80])


def published_judge(folder: Path, how: Importing) -> NeuralJudge:
    bring_in(folder / "model", folder / "judge", "transformers", how)
    judge = load_judge(folder / "judge")
    assert isinstance(judge, NeuralJudge)
    return judge


def same_ids(ours: TextTokenizer, theirs: Any, texts: list[str]) -> None:
    tokens = ours.tokens(pa.array(texts))
    found = [row.tolist() for row in np.split(tokens.ids, np.cumsum(tokens.lengths)[:-1])]
    assert found == [theirs(text, truncation=True, max_length=ours.most)["input_ids"] for text in texts]
    assert max(map(len, found)) == ours.most


class Boom:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("raise SystemExit('run')",)


@pytest.mark.parametrize(
    ("name", "change", "how", "says"),
    [
        ("fineweb_edu", {}, Importing(), "a regressor needs --between LOW,HIGH"),
        ("fineweb_edu", {"architectures": ["BertForTokenClassification"]}, None, "...ForSequenceClassification was"),
        ("fineweb_edu", {"architectures": None}, None, "architectures: none"),
        ("fineweb_edu", {"problem_type": "ranking"}, None, "problem_type is 'ranking'; known are regression,"),
        ("fineweb_edu", {"auto_map": {"AutoModel": "code.Model"}}, None, "auto_map names code of the folder"),
        ("fineweb_edu", {"trust_remote_code": True}, None, "trust_remote_code names code of the folder"),
        ("fineweb_edu", {"model_type": "qwen2"}, None, "model_type 'qwen2' is not read here; known are bert,"),
        ("toxic_bert", {"id2label": {"0": "toxic"}}, None, "id2label does not name the classifier's 6 outputs"),
        ("toxic_bert", {}, Importing(good_label="toxic"), "here each label has a score of its own"),
        ("toxic_bert", {}, Importing(between="0,1"), "--between is for a regressor"),
        ("toxic_bert", {}, Importing(steps="lower"), "--steps means nothing to --from transformers"),
        ("toxic_roberta", {}, Importing(good_label="fine"), "this model has neutral, toxic"),
        ("distilbert", {"hidden_act": "relu", "activation": "swish"}, None, "hidden_act is 'swish'"),
    ],
)
def test_what_is_no_such_classifier_is_refused_in_one_line(
    name: str, change: dict[str, Any], how: Importing | None, says: str, tmp_path: Path
) -> None:
    published(name, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RecipeError) as refused:
        bring_in(tmp_path / "model", tmp_path / "no", "transformers", how or PUBLISHED[name][2])
    assert says in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("ending", ["bin", "pt", "pkl", "ckpt"])
def test_pickles_are_never_opened(ending: str, tmp_path: Path) -> None:
    folder, how = tmp_path / "model", PUBLISHED["fineweb_edu"][2]
    published("fineweb_edu", folder)
    pickled = folder / f"pytorch_model.{ending}"
    pickled.write_bytes(pickle.dumps(Boom()))
    bring_in(folder, tmp_path / "judge", "transformers", how)  # beside safetensors it is left alone
    (folder / "model.safetensors").unlink()
    with pytest.raises(RecipeError, match=rf"it has pytorch_model\.{ending}; weights that are pickled"):
        bring_in(folder, tmp_path / "no", "transformers", how)
    pickled.rename(folder / "model.safetensors")
    with pytest.raises(RecipeError, match=r"model\.safetensors: damaged or cut off"):
        bring_in(folder, tmp_path / "no", "transformers", how)


def test_heads_tokenizers_and_links_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder, how = tmp_path / "model", PUBLISHED["fineweb_edu"][2]
    published("fineweb_edu", folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    for change, says in (
        ({"classifier.weight": torch.full((1, 32), float("nan"))}, "not finite"),
        ({"classifier.weight": torch.zeros(1, 31)}, "one head is read"),
        ({"classifier.dense.weight": torch.zeros(32, 32)}, "no classifier.dense.bias"),
        ({"score.weight": torch.zeros(1, 32)}, "score.weight is of another kind of head"),
    ):
        save_file(weights | change, file)
        with pytest.raises(RecipeError, match=says):
            bring_in(folder, tmp_path / "no", "transformers", how)
    save_file({name: tensor for name, tensor in weights.items() if "pooler" not in name}, file)
    with pytest.raises(RecipeError, match="no pooler"):
        bring_in(folder, tmp_path / "no", "transformers", how)
    save_file(weights, file)
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(RecipeError, match=r"no tokenizer\.json; transformers writes one"):
        bring_in(folder, tmp_path / "no", "transformers", how)
    (folder / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    with pytest.raises(RecipeError, match="a link out of the folder"):
        bring_in(folder, tmp_path / "no", "transformers", how)
    for name in ("../../nowhere", "a/../b", "nobody"):
        with pytest.raises(RecipeError, match="there is no folder"):
            bring_in(Path(name), tmp_path / "no", "transformers", how)
