"""Repositories and engines of anybody, damaged in any place: migrating, examining and linting them answers, or refuses with an error of ours."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trtbuild.doctor import examine_for, survey
from trtbuild.errors import TrtbuildError
from trtbuild.migrate.run import migrate
from trtbuild.migrate.tables import CORE, DECIDE, DROPPED, TEXT

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.integers(0, 64) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["FP8", "W4A16_AWQ", "INT8", "medusa", "float16", "1.2.1", "1.1.0", "0.17", "attn_q"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["tp_size", "quant_algo", "max_lora_rank", "x"]), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def section(*keys: str) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(keys), JUNK, max_size=4) | JUNK


ENGINES = st.fixed_dictionaries({}, optional={
    "version": JUNK,
    "build_config": st.fixed_dictionaries({}, optional={
        **dict.fromkeys(("max_batch_size", "max_seq_len", "max_num_tokens", "max_beam_width", "max_input_len", "speculative_decoding_mode"), JUNK),
        "plugin_config": section("tokens_per_block"), "lora_config": section("lora_target_modules", "max_lora_rank"),
    }),
    "pretrained_config": st.fixed_dictionaries({}, optional={
        "mapping": section("tp_size", "pp_size", "cp_size", "world_size", "moe_ep_size"), "quantization": section("quant_algo", "kv_cache_quant_algo"), "dtype": JUNK,
    }),
})  # fmt: skip
VALUES = st.sampled_from(["", "${x}", "true", "0", "1", "-1", "0.5", "nan", "1,2", "99999999999999999999999", "[[", "/nope", "static_batch", "xgrammar"]) | st.text(max_size=10).filter(str.isprintable)  # fmt: skip
PARAMETERS = st.dictionaries(st.sampled_from([*CORE, *DECIDE, *DROPPED, "decoding_mode", "mine"]), VALUES, max_size=6)


def written(text: str) -> str:
    return json.dumps(text, ensure_ascii=True).replace("\\u", "\\\\u")


@settings(max_examples=150, deadline=None)
@given(
    ENGINES,
    PARAMETERS,
    st.dictionaries(st.sampled_from([*TEXT, *DECIDE]), VALUES, max_size=3),
    st.integers(-(2**31), 2**31 - 1),
)
def test_nothing_but_an_answer_or_an_error_of_ours(
    engine: Any, core: dict[str, str], text: dict[str, str], batch: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "engine").mkdir()
        (folder / "engine" / "config.json").write_text(json.dumps(engine))
        (folder / "engine" / "rank0.engine").touch()
        for model, parameters in (
            ("tensorrt_llm", {**core, "gpt_model_path": str(folder / "engine")}),
            ("preprocessing", text),
        ):
            (folder / "repository" / model / "1").mkdir(parents=True)
            lines = [
                f'parameters {{ key: "{key}" value {{ string_value: {written(value)} }} }}'
                for key, value in parameters.items()
            ]
            (folder / "repository" / model / "config.pbtxt").write_text(
                f'name: "{model}"\nbackend: "tensorrtllm"\nmax_batch_size: {batch}\n' + "\n".join(lines)
            )
        try:
            assert migrate(folder / "repository", model=folder).rows
        except TrtbuildError as error:
            assert error.hint
        for target in (folder / "repository", folder / "engine"):
            try:
                assert examine_for(target, survey(smi=lambda _: None, mpirun=lambda _: None, environment={}))
            except TrtbuildError as error:
                assert error.hint
