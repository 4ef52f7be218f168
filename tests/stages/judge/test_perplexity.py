"""Losses of documents are those of transformers, whatever batch or part a document comes in."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from gristmill.kernels.common.settings import SettingsError
from gristmill.pipeline.judging import judge_plan
from gristmill.pipeline.judging.predictive import lesson_of_losses
from gristmill.stages import Perplexity
from gristmill.stages.judge import perplexity
from gristmill.stages.stage import CannotRun, with_columns
from tests.pipeline.runs import go, save
from tests.stages.settings_of_judges import decoder
from tests.trainer.tiny import TEXTS, byte_pairs

CONTEXT = 48
LONG = " ".join(TEXTS[:2]) * 4  # several windows
SIGNALS = ("bits_per_byte", "nats_per_token")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama as transformers saves it; its texts begin with token 1."""
    pytest.importorskip("transformers")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=1, eos_token_id=0, initializer_range=0.6,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_pairs().save(str(folder / "tokenizer.json"))
    return folder


def stage(folder: Path, **settings: Any) -> Perplexity:
    return Perplexity(**{"model_path": str(folder), "device": "cpu", **settings})


def table(texts: list[str | None]) -> pa.RecordBatch:
    uids = pa.array(range(len(texts)), pa.uint64())
    return pa.record_batch({"uid": uids, "text": pa.array(texts, pa.string())})


def scored(one: Perplexity, texts: list[str | None]) -> list[tuple[float | None, ...]]:
    found = one.annotate(table(texts))
    return list(zip(*(found[name].to_pylist() for name in one.added), strict=True))


def tokens_of(folder: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer.encode(text, add_special_tokens=False).ids


def by_transformers(folder: Path, ids: list[int], window: int) -> float:
    """Nats of all tokens but the first: windows of `window` predictions, each token once, in the first that has it."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder).eval()
    nats, done = 0.0, 1
    while done < len(ids):
        stop = min(len(ids), window + 1 if done == 1 else done + window // 2)
        start = max(0, stop - window - 1)
        with torch.no_grad():
            logits = model(torch.tensor([ids[start : stop - 1]])).logits[0].double()
        chances = logits.log_softmax(-1)
        nats -= sum(float(chances[place - start - 1, ids[place]]) for place in range(done, stop))
        done = stop
    return nats


@pytest.mark.parametrize("window", [2048, 16])
def test_losses_are_those_of_transformers(folder: Path, window: int) -> None:
    texts = [*TEXTS, LONG]
    found = scored(stage(folder, window=window), [*texts])
    long = 0
    for text, (bits, nats) in zip(texts, found, strict=True):
        ids = tokens_of(folder, text)
        if not ids:
            assert bits is None and nats is None
            continue
        expected = by_transformers(folder, [1, *ids], min(window, CONTEXT))
        assert nats == pytest.approx(expected / len(ids), abs=1e-4)
        assert bits == pytest.approx(expected / math.log(2) / len(text.encode()), abs=1e-4)
        long += len(ids) > min(window, CONTEXT)
    assert long >= 1 and len({nats for _, nats in found}) == len(texts)


def test_a_whole_document_has_the_loss_that_transformers_reports(folder: Path) -> None:
    import torch
    from transformers import LlamaForCausalLM

    text = TEXTS[0]
    ids = torch.tensor([[1, *tokens_of(folder, text)]])
    loss = float(LlamaForCausalLM.from_pretrained(folder)(ids, labels=ids).loss.detach())
    assert scored(stage(folder), [text])[0][1] == pytest.approx(loss, abs=1e-4)


def test_the_token_before_a_document_is_as_asked(folder: Path) -> None:
    ids = tokens_of(folder, TEXTS[0])
    expected = {
        "bos": by_transformers(folder, [1, *ids], CONTEXT),
        "eos": by_transformers(folder, [0, *ids], CONTEXT),
        "nothing": by_transformers(folder, ids, CONTEXT) + math.log(300),
    }
    for before, nats in expected.items():
        assert scored(stage(folder, before=before), [TEXTS[0]])[0][1] == pytest.approx(nats / len(ids), abs=1e-4)
    assert scored(stage(folder), [TEXTS[0]]) == scored(stage(folder, before="bos"), [TEXTS[0]])


def test_losses_do_not_depend_on_batches(folder: Path) -> None:
    texts: list[str | None] = [*TEXTS, LONG, None, *TEXTS[:2]]
    one = stage(folder)
    whole = scored(one, texts)
    assert whole == [scored(one, [text])[0] for text in texts] == scored(one, texts[::-1])[::-1]
    found = one.annotate(table(["before", *texts]).slice(1))
    assert list(zip(*(found[name].to_pylist() for name in SIGNALS), strict=True)) == whole
    assert [pair == (None, None) for pair in whole].count(True) == 2 and found["bits_per_byte"].type == pa.float32()


def write_recipe(folder: Path, model: Path, parts: int) -> Path:
    texts = [f"{text} {number}" for number, text in enumerate(TEXTS * 4)] + [LONG]
    for number in range(3):
        some = texts[number::3]
        (folder / f"in{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    return save(
        folder / "r.yaml",
        f"name: r\nparts: {{files: {parts}}}\nsources:\n  a: {{jsonl: {{path: 'in*.jsonl'}}}}\nstages:\n"
        f"  - perplexity: {{model_path: {model}, device: cpu, prefix: small_}}\n"
        "  - keep_where: {signal: small_nats_per_token, at_most: 12.5}\n"
        "  - order: {by: small_bits_per_byte, schedule: ascending}\n  - write\n",
    )


def test_a_recipe_filters_and_orders_by_losses_whatever_the_parts(folder: Path, tmp_path: Path) -> None:
    written = []
    for parts in (1, 3):
        place = tmp_path / str(parts)
        place.mkdir()
        go(write_recipe(place, folder, parts), place / "out", 0)
        rows = pa.concat_tables([pq.read_table(path) for path in sorted((place / "out/write").rglob("*.parquet"))])
        written.append({row["text"]: (row["small_bits_per_byte"], row["difficulty"]) for row in rows.to_pylist()})
    assert written[0] == written[1] and 5 < len(written[0]) < 29
    by_loss = [rank for _, rank in sorted(written[0].values())]
    assert by_loss == sorted(by_loss) and len(set(by_loss)) > 5


def test_a_judge_learns_from_the_losses_of_several_decoders(folder: Path, tmp_path: Path) -> None:
    texts: list[str | None] = [f"{text} {number}" for number, text in enumerate(TEXTS * 6)]
    batch = table(texts)
    for number in range(4):
        model = decoder(tmp_path, f"m{number}", number)
        found = stage(Path(model), prefix=f"m{number}_").annotate(batch)
        batch = with_columns(batch, found)
    pq.write_table(pa.Table.from_batches([batch]), tmp_path / "losses.parquet")
    (tmp_path / "scores.csv").write_text("model,quiz\n" + "".join(f"m{i},{i}\n" for i in range(4)))
    losses = {"files": "losses.parquet", "scores": "scores.csv", "column": "{model}_bits_per_byte", "share": 0.3}
    plan = {"out": "judge", "kind": "linear", "losses": losses, "group": ["text"]}
    loaded = judge_plan.load(save(tmp_path / "plan.yaml", json.dumps(plan)))
    assert loaded.plan.losses is not None
    lesson, chosen = lesson_of_losses(loaded, loaded.plan.losses)
    assert lesson.facts["selection"]["models"] == ["m0", "m1", "m2", "m3"] and len(chosen) > 5


def test_what_is_no_decoder_is_refused_and_no_document_is_blamed(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="model_path: /nowhere is not there"):
        stage(Path("/nowhere"))
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(SettingsError, match=r"tokenizer_path: .* has no tokenizer\.json"):
        stage(tmp_path)
    tokenizer = str(folder / "tokenizer.json")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(CannotRun, match="pickled"):
        stage(tmp_path, tokenizer_path=tokenizer).annotate(table(["a text"]))
    config = json.loads((folder / "config.json").read_text())
    other = tmp_path / "gpt2"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(CannotRun, match="gpt2"):
        stage(other, tokenizer_path=tokenizer).annotate(table(["a text"]))
    byte_pairs(320).save(str(tmp_path / "larger.json"))
    with pytest.raises(CannotRun, match="not in the model's vocabulary"):
        stage(folder, tokenizer_path=str(tmp_path / "larger.json")).annotate(table([LONG]))
    with pytest.raises(ValueError, match="names no bos_token_id"):
        perplexity.token_before({"bos_token_id": None}, "bos")
    assert perplexity.token_before({"eos_token_id": [7, 8]}, "eos") == 7
    assert perplexity.token_before({}, "auto") is None and np.isfinite(scored(stage(folder), ["a"])[0][0] or 0)
