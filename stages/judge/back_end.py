"""Which language model answers, and by what: vLLM or transformers in this process, or an endpoint in OpenAI's
manner."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from gristmill.kernels.common.device import on_device
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.common.settings import PLACEMENT, Settings, did_you_mean

if TYPE_CHECKING:
    from gristmill.classifiers.llm.model import LanguageModel


# Arguments of vLLM's `LLM` that plans and recipes may give: none names a file, a class or a plugin, so none runs code.
# Any of them may move an answer, so all count in fingerprints and in the keys of kept answers.
ENGINE_OPTIONS = (
    "block_size", "calculate_kv_scales", "cpu_offload_gb", "disable_cascade_attn", "disable_custom_all_reduce",
    "enable_chunked_prefill", "enable_expert_parallel", "enforce_eager", "hf_overrides", "kv_cache_dtype",
    "kv_cache_memory_bytes", "limit_mm_per_prompt", "max_num_batched_tokens", "max_num_seqs",
    "max_parallel_loading_workers", "mm_processor_kwargs", "num_gpu_blocks_override",
)  # fmt: skip
OWN_SETTINGS = {  # of vLLM's arguments
    "tensor_parallel_size": "tensor_parallel", "gpu_memory_utilization": "gpu_memory", "dtype": "dtype",
    "quantization": "quantization", "max_model_len": "longest_prompt", "speculative_config": "speculative",
    "model": "model", "revision": "revision", "enable_prefix_caching": "measure_feeding",
}  # fmt: skip
OF_VLLM = (
    "quantization", "dtype", "tensor_parallel", "gpu_memory", "engine_options", "speculative", "measure_feeding",
)  # fmt: skip


class BackEnd(Settings):
    """A model by name (of a hub, or of an endpoint) or by folder."""

    model_config = ConfigDict(protected_namespaces=())  # older pydantic warns of `model_path`

    model: Annotated[str, Field(description="its name on a hub, or the name by which the endpoint knows it")] = ""
    model_path: Annotated[RecipePath, Field(description="or its folder; what it holds counts, not where it lies")] = ""
    endpoint: Annotated[
        str, Field(description="address of a server in OpenAI's manner, up to /v1", json_schema_extra=PLACEMENT)
    ] = ""
    engine: Annotated[
        Literal["vllm", "transformers"], Field(description="what runs the model in this process, without an endpoint")
    ] = "vllm"
    form: Annotated[
        Literal["chat", "thinking", "completions", "tokens"],
        Field(
            description="how it is asked: chat; bare text (base models); of an endpoint also token ids, for vLLM's "
            "server, and thinking, for OpenAI's models "
            "that think first (max_tokens counts that too)"
        ),
    ] = "chat"
    revision: Annotated[
        str, Field(description="a commit on the hub; of an endpoint, your word for which weights answer")
    ] = ""
    quantization: Annotated[
        str,
        Field(
            description="vLLM's word for it (fp8), where the checkpoint does not say; those of compressed-tensors (2:4 "
            "sparse ones too), GPTQ, AWQ and fp8 do"
        ),
    ] = ""
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"],
        Field(description="what vLLM computes in; auto: what the checkpoint is stored in"),
    ] = "auto"
    tensor_parallel: Annotated[
        int,
        Field(description="GPUs of one machine that share the model (vLLM)", ge=1, json_schema_extra=PLACEMENT),
    ] = 1
    gpu_memory: Annotated[
        float, Field(description="the share of a GPU's memory that vLLM takes", gt=0, le=1, json_schema_extra=PLACEMENT)
    ] = 0.9
    engine_options: Annotated[
        dict[str, Any],
        Field(
            description="other arguments of vLLM's `LLM`, such as {kv_cache_dtype: fp8}; those that may run code are refused"
        ),
    ] = {}  # noqa: RUF012  # pydantic copies it
    speculative: Annotated[
        str,
        Field(description="tokens guessed ahead of the model (vLLM): ngram, by what it has read; or a draft model"),
    ] = ""
    speculative_tokens: Annotated[int, Field(description="how many are guessed", ge=1, le=32)] = 5
    measure_feeding: Annotated[
        bool,
        Field(
            description="choose by measurement on the first 13,000 requests how vLLM is fed: with or without prefix "
            "cache, sorted or as they come, how many at a time",
            json_schema_extra=PLACEMENT,
        ),
    ] = False
    longest_prompt: Annotated[int, Field(description="tokens of prompt and answer together (vLLM)", ge=64)] = 8192
    key_variable: Annotated[
        str, Field(description="the environment variable with the endpoint's key", json_schema_extra=PLACEMENT)
    ] = ""
    connections: Annotated[
        int, Field(description="requests to an endpoint at a time", ge=1, json_schema_extra=PLACEMENT)
    ] = 64
    timeout: Annotated[
        float, Field(description="seconds of a whole exchange with an endpoint", gt=0, json_schema_extra=PLACEMENT)
    ] = 300.0
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(description="of transformers; auto: a GPU if there is one", json_schema_extra=PLACEMENT),
    ] = "auto"

    @field_validator("engine_options")
    @classmethod
    def _runs_no_code(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name in options:
            if name in OWN_SETTINGS:
                raise ValueError(f"{name}: has a setting of its own, `{OWN_SETTINGS[name]}`")
            if name not in ENGINE_OPTIONS:
                raise ValueError(
                    f"{name}: not among the arguments of vLLM that are known to run no code; "
                    + did_you_mean(name, ENGINE_OPTIONS)
                )
        try:
            json.dumps(options, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"expected numbers, text, lists and mappings by text: {error}") from error
        return options

    @model_validator(mode="after")
    def _names_a_model(self) -> Self:
        if bool(self.model) == bool(self.model_path) and not (self.endpoint and self.form == "tokens"):
            raise ValueError("name the model by one of `model` and `model_path`")
        if self.endpoint and not self.model:
            raise ValueError("`model`: the name by which the endpoint knows it")
        if self.form == "tokens" and not self.endpoint:
            raise ValueError("`form: tokens` is for an endpoint; in this process prompts are token ids anyway")
        if self.form == "thinking" and not self.endpoint:
            raise ValueError("`form: thinking` is for an endpoint")
        own = {name: type(self).model_fields[name].default for name in OF_VLLM}
        given = [name for name, default in own.items() if getattr(self, name) != default]
        if given and (self.endpoint or self.engine != "vllm"):
            raise ValueError(
                f"`{given[0]}` is for vllm in this process; a server has its own settings, and transformers takes what "
                "the checkpoint says"
            )
        if self.key_variable and not self.endpoint:
            raise ValueError("`key_variable` is for an endpoint")
        return self

    def __hash__(self) -> int:
        """Equal settings share one model in a process; a mapping among them has no hash of its own."""
        return hash(self.model_dump_json())

    @property
    def gpu(self) -> bool:
        """As of a stage."""
        return not self.endpoint and (self.engine == "vllm" or self.device != "cpu")

    @property
    def gpus(self) -> int:
        """As of a stage."""
        return self.tensor_parallel if self.gpu else 0

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        """As of a stage. Only pictures need PIL; an endpoint is another program, and gets texts or tokens."""
        if self.endpoint:
            return ("PIL", "torch", "vllm") if self.form == "tokens" else ("PIL", "torch", "transformers", "vllm")
        return ("PIL",) if self.engine == "vllm" else ("PIL", "vllm")

    def opened(self) -> LanguageModel:
        """The model, ready to be asked. LanguageModelError says what it lacks."""
        if self.endpoint:
            return self._endpoint()
        name, revision = self.model_path or self.model, self.revision or None
        if self.engine == "transformers":
            from gristmill.classifiers.llm.transformers import TransformersModel

            return TransformersModel(name, revision, chat=self.form == "chat", device=on_device(self.device))
        from gristmill.classifiers.llm.vllm import VllmModel, VllmSettings

        settings = VllmSettings(
            revision=revision,
            chat=self.form == "chat",
            tensor_parallel=self.tensor_parallel,
            quantization=self.quantization or None,
            dtype=self.dtype,
            gpu_memory=self.gpu_memory,
            engine_options=self.engine_options,
            longest_prompt=self.longest_prompt,
            measure_feeding=self.measure_feeding,
            speculative=self.speculative,
            speculative_tokens=self.speculative_tokens,
        )
        return VllmModel(name, settings)

    def _endpoint(self) -> LanguageModel:
        from gristmill.classifiers.llm.http import Endpoint, HttpModel
        from gristmill.classifiers.llm.tokens import PromptTokens

        tokens = (
            PromptTokens.load(self.model_path or self.model, self.revision or None) if self.form == "tokens" else None
        )
        endpoint = Endpoint(
            self.endpoint,
            self.model,
            form=self.form,
            key_variable=self.key_variable,
            revision=self.revision,
            connections=self.connections,
            timeout=self.timeout,
        )
        return HttpModel(endpoint, tokens)
