"""Which variables trtllm-build gets, and which it never does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.errors import UsageError
from trtbuild.redaction import is_secret
from trtbuild.trtllm.build_environment import FURTHER, builder_environment, secrets_of_builder
from trtbuild.variables import PROCESS, SETUP, pick


@pytest.mark.parametrize(
    "name",
    ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "NCCL_DEBUG", "OMPI_MCA_plm_rsh_agent", "OPAL_PREFIX",
     "PMIX_RANK", "UCX_TLS", "SLURM_JOB_ID", "TRTLLM_ENABLE_PDL", "TLLM_LOG_LEVEL", "TRT_LLM_DISABLE", "OMP_NUM_THREADS", "PYTHONPATH", "VIRTUAL_ENV", "HF_HOME", "LANG", "LC_ALL",
     "TOKENIZERS_PARALLELISM", "TRITON_CACHE_DIR", "TORCH_CUDA_ARCH_LIST", "USER"],
)  # fmt: skip
def test_what_tensorrt_llm_may_need_is_passed_on(name: str) -> None:
    assert builder_environment({name: "value"})[name] == "value"


@pytest.mark.parametrize(
    ("name", "value"),
    [("MYSQL_PWD", "x"), ("DATABASE_URL", "x"), ("ANYTHING", "x"), ("HTTPS_PROXY", "http://proxy"), ("SLURM_JWT", "x"), ("TRTLLM_API_KEY", "x"), ("CUDA_SECRET", "x"),
     ("HF_ENDPOINT", "https://bob:pw@mirror.example"), ("PYTHONSTARTUP", "hf_AbCdEfGhIjKlMnOpQrSt"), ("HF_TOKEN", "x")],
)  # fmt: skip
def test_everything_else_is_not(name: str, value: str) -> None:
    assert set(builder_environment({name: value})) == {"PYTHONUNBUFFERED"}


def test_further_variables_are_named_and_their_secrets_known() -> None:
    inherited = {
        FURTHER: " A_TOKEN, MINE_*,",
        "A_TOKEN": "hunter2",
        "B_TOKEN": "other-one",
        "MINE_1": "x",
        "MINES": "y",
    }
    given_on = builder_environment(inherited)
    assert {name: given_on[name] for name in inherited if name in given_on} == {"A_TOKEN": "hunter2", "MINE_1": "x"}
    assert "hunter2" in secrets_of_builder(inherited)
    assert "other-one" not in secrets_of_builder(inherited)


@pytest.mark.parametrize("pattern", ["*", "A, **", "?*"])
def test_not_everything_can_be_named(pattern: str) -> None:
    with pytest.raises(UsageError, match="TRTBUILD_BUILDER_ENV names every variable"):
        builder_environment({FURTHER: pattern})


def test_no_listed_name_means_a_secret() -> None:
    assert [name for name in (*SETUP, *PROCESS) if is_secret(name.rstrip("*_"))] == []


@given(
    st.dictionaries(
        st.sampled_from(["CUDA_", "NCCL_", "SLURM_", "PYTHON"]),
        st.sampled_from(["PWD", "API_KEY", "TOKEN", "SECRET", "DEBUG"]),
    )
)
def test_a_secret_name_is_never_picked(words: dict[str, str]) -> None:
    picked = pick({f"{start}{'' if start.endswith('_') else '_'}{end}": "value" for start, end in words.items()}, SETUP)
    assert not any(map(is_secret, picked))
