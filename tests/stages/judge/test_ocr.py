"""Scanned pages become text by a vision model: over HTTP, by vLLM (made up) and by a small random Llava."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill.classifiers.llm.model import Answer, LanguageModelError, Request, request_key
from gristmill.classifiers.llm.tokens import PromptTokens
from gristmill.classifiers.llm.vllm import VllmModel, VllmSettings
from gristmill.stages import Extract, Ocr
from gristmill.stages.judge import ocr
from gristmill.stages.stage import CannotRun
from tests.classifiers.llm import fake_vllm
from tests.classifiers.llm.llm_models import RuleModel, chat_tokenizer, trained_tokenizer
from tests.classifiers.llm.llm_server import LanguageServer, chat_reply
from tests.stages.pdf.made_pdfs import SCAN, column, hostile, pdf, prose

pytest.importorskip("pypdfium2")
pytest.importorskip("PIL")

TEXT = column(prose(80), 72, 740, width=80)[0]
HTML = b"<html><body><p>A page of the web, with words.</p></body></html>"


def scan(number: int) -> bytes:
    """A picture that no other number has: what is asked twice is asked once."""
    return SCAN + b" 0 g %d 100 90 90 re f" % (20 * number)


def scans(*numbers: int) -> bytes:
    return pdf([scan(number) for number in numbers])


def pages(*files: bytes | None) -> pa.RecordBatch:
    texts = {name: pa.array([None] * len(files), pa.string()) for name in ("charset", "text", "url", "meta")}
    uids = pa.array(range(len(files)), pa.uint64())
    return pa.table({"uid": uids, "html": pa.array(files, pa.binary()), **texts}).to_batches()[0]


def answering(monkeypatch: pytest.MonkeyPatch, rule: Any) -> RuleModel:
    model = RuleModel(rule)
    monkeypatch.setattr(ocr, "opened", lambda back_end: model)
    return model


def test_only_pages_without_text_are_asked_for_and_other_files_pass_untouched():
    batch = pages(HTML, pdf([TEXT, scan(1), scan(2)]), pdf([TEXT]), None, hostile()["locked"][0])
    with LanguageServer(lambda path, body: chat_reply("The text of a picture.")) as server:
        stage = Ocr(model="m", endpoint=server.url, prompt_price=1.0, completion_price=2.0)
        done = stage.apply(batch)
    assert len(server.bodies) == 2
    for body in server.bodies:
        picture, words = body["messages"][0]["content"]
        kind, _, data = picture["image_url"]["url"].partition(",")
        assert kind == "data:image/png;base64" and base64.b64decode(data).startswith(b"\x89PNG")
        assert words["text"] == stage.prompt and body["max_tokens"] == 4096
    assert done.batch.column("text").to_pylist() == [
        None, " ".join(prose(80)) + "\n\nThe text of a picture.\n\nThe text of a picture.", None, None, None,
    ]  # fmt: skip
    assert [html is None for html in done.batch.column("html").to_pylist()] == [False, True, False, True, False]
    assert json.loads(done.batch.column("meta")[1].as_py()) == {"pages": 3, "ocr_pages": 2}
    # 7 tokens of a prompt and 3 of an answer each, 4 of the prompt's from a cache
    assert dict(done.noted) == {
        "ocr_files": 1, "ocr_pages": 2, "ocr_prompt_tokens": 14, "ocr_tokens": 6, "ocr_microdollars": 26,
    }  # fmt: skip
    assert done.verdict.kept.all()
    facts = dict(Ocr.figures({"noted": dict(done.noted)}).blocks[0].pairs)
    assert facts["pages"].startswith("2,") and facts["dollars"] == "0.0000, 13.00 a million pages"
    after = Extract().apply(done.batch)
    assert after.verdict.reason(4) == "pdf_encrypted" and after.batch.column("text")[2].as_py() == " ".join(prose(80))
    assert after.batch.column("text")[1].as_py().endswith("The text of a picture.")


def test_a_page_without_an_answer_is_a_page_less_and_a_file_without_any_is_dropped(monkeypatch: pytest.MonkeyPatch):
    failing = Answer(failure="timeout", detail="no reply")
    model = answering(monkeypatch, lambda request: failing if len(model.asked) % 2 else Answer("Words of a page."))
    batch = pages(scans(1, 2), scans(3), scans(4))
    with pytest.raises(CannotRun, match=r"2 of 4 pages have no answer, more than 2\.0%"):
        Ocr(model="m", longest_side=64).apply(batch)
    model.asked.clear()
    done = Ocr(model="m", longest_side=64, most_failures=1.0).apply(batch)
    assert done.noted["ocr_failed_pages"] == 2 and len(model.asked) == 4
    reasons = [done.verdict.reason(row) for row in range(3)]
    assert set(reasons) <= {None, "ocr_failed"} and reasons.count("ocr_failed") >= 1
    assert all("timeout" in detail for detail in done.verdict.details.values()) and done.verdict.details
    answering(monkeypatch, lambda request: Answer(""))
    assert Ocr(model="m").apply(pages(pdf([SCAN]))).verdict.reason(0) == "no_text"


def test_many_pages_are_asked_for_a_bounded_number_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ocr, "TOGETHER", 4)
    sizes: list[int] = []
    model = answering(monkeypatch, lambda request: Answer("Words."))
    inner = model.answers
    model.answers = lambda requests: sizes.append(len(requests)) or inner(requests)
    done = Ocr(model="m", longest_side=64).apply(pages(scans(*range(9)), scans(10, 11), scans(12, 13)))
    assert done.noted["ocr_pages"] == 13 and max(sizes) <= 4
    assert [text.count("Words.") for text in done.batch.column("text").to_pylist()] == [9, 2, 2]


def test_the_key_of_an_answer_hangs_on_the_picture_and_is_as_before_without_one():
    with_one, with_other = (Request("read", images=(png,)) for png in (b"one", b"other"))
    keys = {request_key(request, {}) for request in (Request("read"), with_one, with_other)}
    assert len(keys) == 3
    assert request_key(Request("read"), {}) == "980cf2a92aef1bc17fb6c49ac9f7490fadde24f81d53c9ccb1a22e669be7624a"


def image_tokenizer() -> Any:
    made = chat_tokenizer(trained_tokenizer())
    made.add_special_tokens({"additional_special_tokens": ["<image>"]})
    made.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
        "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
        "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return made


def test_vllm_is_given_the_picture_and_the_place_that_the_template_leaves_for_it():
    tokens = PromptTokens(image_tokenizer(), chat=True)
    model = VllmModel("org/name", VllmSettings(engine_tokenizer=False), tokens, fake_vllm)
    pictures = ocr.render_pages(pdf([SCAN, SCAN]), [0, 1], 64)
    asked = [Request("Read <image> it.", max_tokens=8, images=(png,)) for png in pictures.values()]
    found = dict(model.answers(asked))
    assert sorted(found) == [0, 1] and not any(answer.failure for answer in found.values())
    place = tokens.tokenizer.convert_tokens_to_ids("<image>")
    seen = model._llm.llm_engine.pictures
    assert [picture.size for picture in seen] == [(45, 64), (45, 64)]
    for request in asked:
        assert tokens.prompts([request])[0].count(place) == 1  # that of the text is ten characters of text
    with pytest.raises(LanguageModelError, match="base model"):
        PromptTokens(image_tokenizer(), chat=False).prompts(asked)


def test_forms_without_chat_take_no_pictures():
    with pytest.raises(ValueError, match="takes text alone"):
        Ocr(model="m", endpoint="http://localhost:1/v1", form="completions")


def small_llava(folder: Path) -> Path:
    import torch
    from transformers import (  # fmt: skip
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    torch.manual_seed(0)
    tokenizer = image_tokenizer()
    vision = CLIPVisionConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8, projection_dim=16)  # fmt: skip
    text = LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="default", vision_feature_layer=-1,
    )  # fmt: skip
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    size = {"height": 32, "width": 32}
    pictures = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=size)
    LlavaProcessor(
        pictures, tokenizer, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def test_a_small_llava_reads_a_page(tmp_path: Path):
    pytest.importorskip("transformers")
    stage = Ocr(model_path=str(small_llava(tmp_path / "llava")), engine="transformers", device="cpu", prompt="Read.", max_tokens=6, longest_side=64)  # fmt: skip
    batch = pages(scans(1), scans(9))
    done, again = stage.apply(batch), stage.apply(batch)
    assert done.noted["ocr_pages"] == 2 and done.noted["ocr_cut_pages"] == 2 and done.noted["ocr_tokens"] == 12
    assert done.noted["ocr_prompt_tokens"] > 2 * 16  # a picture is sixteen tokens
    assert done.batch.equals(again.batch) and not done.noted.get("ocr_failed_pages")
    assert stage.model_here().identity["vision"] is True
    with pytest.raises(LanguageModelError, match="about images"):
        next(stage.model_here().answers([Request("without one")]))
