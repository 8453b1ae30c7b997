"""Section of trtbuild.yaml: the Triton server and the text side."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from trtbuild.spec.section import Positive, Section

Port = Annotated[int, Meta(ge=0, le=65535)]


class Serving(Section, frozen=True):
    """The Triton server and the text side of the deployment."""

    address: Annotated[str, Meta(description="Address the server binds.")] = "127.0.0.1"
    http_port: Annotated[Port, Meta(description="HTTP port; 0 picks a free one.")] = 8000
    grpc_port: Annotated[Port, Meta(description="gRPC port; 0 picks a free one.")] = 8001
    metrics_port: Annotated[Port, Meta(description="Metrics port; 0 picks a free one.")] = 8002
    streaming: Annotated[bool, Meta(description="Decoupled models: answers can be streamed token by token.")] = True
    preprocessing_instances: Annotated[Positive, Meta(description="Instances of preprocessing.")] = 1
    bls_instances: Annotated[
        Positive, Meta(description="Instances of tensorrt_llm_bls; each serves one request at a time.")
    ] = 2
    chat_template: Annotated[
        bool | Literal["messages"],
        Meta(
            description="Apply the chat template: true takes text_input for one user message, messages for a JSON list of messages."
        ),
    ] = False
    system_prompt: Annotated[str | None, Meta(description="System message put before it; needs chat_template.")] = None
    add_special_tokens: Annotated[bool, Meta(description="Add BOS and the like to prompts that are not templated.")] = (
        True
    )
    skip_special_tokens: Annotated[bool, Meta(description="Leave special tokens out of the answer.")] = True
    stop_words: Annotated[
        tuple[str, ...], Meta(description="Words that end every answer, besides the request's own.")
    ] = ()
    max_queue_size: Annotated[int, Meta(ge=0, description="Requests waiting at most; 0 is unlimited.")] = 0
    max_queue_delay_us: Annotated[int, Meta(ge=0, description="How long a batch may wait, microseconds.")] = 0
    queue_timeout_us: Annotated[
        int, Meta(ge=0, description="How long a request may wait, microseconds; 0 is for ever.")
    ] = 0
    queue_timeout_action: Annotated[
        Literal["reject", "delay"],
        Meta(description="What becomes of a request that waited for longer: an error, or its turn after all others."),
    ] = "reject"
    allow_timeout_override: Annotated[
        bool, Meta(description="Requests may shorten queue_timeout_us by their own timeout.")
    ] = False
    priority_levels: Annotated[int, Meta(ge=0, description="Levels of priority, 1 first; 0 is none.")] = 0
    default_priority_level: Annotated[
        int, Meta(ge=0, description="Level of requests that name none; empty or 0 is the last.")
    ] = 0
    mode: Annotated[
        Literal["leader", "orchestrator"],
        Meta(description="MPI processes of an engine: one per GPU, or one server that starts or is given workers."),
    ] = "leader"
    gpu_device_ids: Annotated[
        str | None,
        Meta(description="GPUs of each instance of an engine, e.g. 0,1;2,3 for two; empty: TensorRT-LLM chooses."),
    ] = None
    participant_ids: Annotated[
        str | None,
        Meta(description="MPI ranks of the workers of each instance, e.g. 1;2; empty: the server starts them."),
    ] = None
    guided_decoding: Annotated[
        Literal["xgrammar"] | None, Meta(description="Grammars and JSON for engines; from 0.19 on.")
    ] = None
    xgrammar_tokenizer_info: Annotated[
        str | None,
        Meta(description="File with the tokenizer as XGrammar needs it: encoded_vocab, tokenizer_str, stop_token_ids."),
    ] = None

    def __post_init__(self) -> None:
        """Refuse values that do not go together."""
        if self.default_priority_level > self.priority_levels:
            raise ValueError(
                f"default_priority_level={self.default_priority_level} exceeds priority_levels={self.priority_levels}"
            )
        if (self.guided_decoding is None) != (self.xgrammar_tokenizer_info is None):
            raise ValueError("guided_decoding and xgrammar_tokenizer_info need each other")
        if self.system_prompt is not None and not self.chat_template:
            raise ValueError("system_prompt needs chat_template: true or messages")
