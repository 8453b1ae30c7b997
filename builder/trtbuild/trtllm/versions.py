"""Releases of TensorRT-LLM: what each can do, what it was built with, and which Triton containers carry it.

Every row and every feature is `known` (read in NVIDIA's compatibility matrix, release notes or source) or `inferred` (concluded from its neighbours).
Nothing else in trtbuild compares version numbers: it asks `release.has(Feature.X)`.

Sources: Triton specification 3.1 and 3.3 (server docs/introduction/compatibility.md); checkpoint specification 4.11 and 5; LLM API specification 1.11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import total_ordering
from typing import Literal

from trtbuild.errors import UsageError

Evidence = Literal["known", "inferred"]
#: Image of a container tag.
IMAGE = "nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3"
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.?rc(\d+))?(?:\.?post(\d+))?(?:[.+].*)?")
#: Sorts a release behind all of its candidates.
_NOT_A_CANDIDATE = 10**6


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """A version number of TensorRT-LLM, ordered as releases are: 1.3.0rc20 < 1.3.0 < 1.3.1.

    Attributes:
        text: as it was written.
        numbers: major, minor, patch, candidate, post.
        has_patch: whether a patch number was written; "1.2" names a line of releases.
    """

    text: str
    numbers: tuple[int, int, int, int, int]
    has_patch: bool = True

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """Return the version that a text names, None when it names none."""
        match = _VERSION.fullmatch(text.strip().removeprefix("v"))
        if match is None:
            return None
        major, minor, patch, candidate, post = match.groups()
        number = _NOT_A_CANDIDATE if candidate is None else int(candidate)
        return cls(text, (int(major), int(minor), int(patch or 0), number, int(post or 0)), patch is not None)

    @property
    def line(self) -> tuple[int, int]:
        """Major and minor."""
        return self.numbers[:2]

    @property
    def is_candidate(self) -> bool:
        """Whether it is a release candidate."""
        return self.numbers[3] != _NOT_A_CANDIDATE

    def __lt__(self, other: Version) -> bool:
        return self.numbers < other.numbers

    def __str__(self) -> str:
        return self.text


class Feature(Enum):
    """What some releases can do and others cannot."""

    ENGINE = "builds and serves TensorRT engines"
    LLM_API = "serves Hugging Face folders through the PyTorch backend"
    AUTO_PARALLEL = "trtllm-build --auto_parallel"
    GEMM_ALLREDUCE = "trtllm-build --gemm_allreduce_plugin"
    NORM_QUANT_FUSION = "trtllm-build --norm_quant_fusion"
    CONFIG_FLAG = "trtllm-serve --config"
    CLI_BEATS_YAML = "options of trtllm-serve win over its YAML file"
    SAMPLER_TYPE = "sampler_type of the LLM API"
    EAGLE3 = "decoding_type Eagle3"
    DRAFT_TARGET_UNDERSCORE = "decoding_type is spelled Draft_Target"
    MTP_DRAFT_LEN = "MTP takes max_draft_len"
    MOE_BACKEND_AUTO = "moe_config.backend AUTO"
    SEED_NAMES = "requests say seed and min_tokens"
    PERF_METRICS = "requests can ask for return_perf_metrics"
    NUM_TOKENS_OUTPUTS = "requests can ask for the numbers of tokens"
    LLM_ARGS_READ = "arguments of the LLM API were read in source of this line or its neighbours"
    DRAFT_ONE_MODEL = "a draft model runs inside the target's step"
    CLEAR_GRAPH_SIZES = "cuda_graph_config takes batch_sizes and max_batch_size together"
    LLMAPI_LORA_INPUTS = "Triton's llmapi model takes lora_* inputs"
    QWEN3_ENGINES = "builds engines of Qwen3 and its mixture of experts"
    UNEVEN_STAGES = "pipeline stages of engines may have different numbers of layers"


@dataclass(frozen=True, slots=True)
class Span:
    """The releases that have a feature: from `since` (included) until `until` (excluded)."""

    since: str | None
    until: str | None
    evidence: Evidence
    source: str


FEATURES: dict[Feature, Span] = {
    Feature.ENGINE: Span(None, "1.3.0rc21", "known", "release text of 1.3.0rc20: last candidate with the TensorRT backend"),
    Feature.LLM_API: Span("1.0.0", None, "known", "1.0 release notes: PyTorch is the default backend"),
    Feature.AUTO_PARALLEL: Span(None, "1.1.0", "inferred", "gone in the source of 1.1; no note says when"),
    Feature.GEMM_ALLREDUCE: Span("0.19.0", "1.3.0rc21", "inferred", "missing in build logs of 0.17.0.post1 and 0.18.0 (TensorRT-LLM #2810, #3654), there in one of 0.20.0; gone with trtllm-build"),
    Feature.NORM_QUANT_FUSION: Span("0.19.0", "1.3.0rc21", "inferred", "missing in a build log of 0.17.0.post1 (TensorRT-LLM #2810), there in one of 0.20.0; gone with trtllm-build"),
    Feature.CONFIG_FLAG: Span("1.2.0", None, "inferred", "alias seen in 1.2-era source"),
    Feature.CLI_BEATS_YAML: Span("1.3.0rc0", None, "inferred", "seen in newest source, not in 1.2-era source"),
    Feature.SAMPLER_TYPE: Span("1.1.0", "1.3.0rc21", "inferred", "field tables of 1.1 to 1.3"),
    Feature.EAGLE3: Span("1.2.0", None, "inferred", "1.2-era source splits Eagle and Eagle3"),
    Feature.DRAFT_TARGET_UNDERSCORE: Span("1.2.0", None, "inferred", "spelling in 1.2-era source"),
    Feature.MTP_DRAFT_LEN: Span("1.3.0rc0", None, "inferred", "newest source; the old name is an alias there"),
    Feature.MOE_BACKEND_AUTO: Span("1.2.0", None, "inferred", "1.2-era source; the copy around 1.1 has no AUTO"),
    Feature.SEED_NAMES: Span("0.20.0", None, "known", "templates of branch r25.05, commit c2e65b8"),
    Feature.PERF_METRICS: Span("0.19.0", None, "known", "templates of 0.19"),
    Feature.NUM_TOKENS_OUTPUTS: Span("0.21.0", None, "inferred", "PR #5445 of June 2025"),
    Feature.LLM_ARGS_READ: Span("1.1.0", None, "inferred", "llm_args.py of 1.1, 1.2 and 1.4 candidates; 1.0 is concluded from 1.1"),
    Feature.DRAFT_ONE_MODEL: Span("1.4.0rc0", None, "inferred", "draft_target_one_model in newest source only"),
    Feature.CLEAR_GRAPH_SIZES: Span("1.1.0", None, "inferred", "the 1.0 copy wants the list that it would generate"),
    Feature.LLMAPI_LORA_INPUTS: Span("1.4.0rc0", None, "inferred", "newest triton_backend only"),
    Feature.QWEN3_ENGINES: Span("1.0.0", "1.3.0rc21", "known", "1.0 release notes: Qwen3 dense and MoE added to the TensorRT flow"),
    Feature.UNEVEN_STAGES: Span("1.0.0", None, "inferred", "checkpoint specification 3.4: Mapping of the 0.1x copies gives every stage n div pp layers, and so loses the rest"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Container:
    """One Triton container with TensorRT-LLM.

    Attributes:
        tag: e.g. 26.07.
        server: Triton version.
        driver: oldest NVIDIA driver that its CUDA needs.
    """

    tag: str
    server: str
    driver: str

    @property
    def image(self) -> str:
        """The name to pull."""
        return IMAGE.format(tag=self.tag)


@dataclass(frozen=True, slots=True)
class Release:
    """One release of TensorRT-LLM.

    Attributes:
        name: as `tensorrt_llm.__version__` says it.
        tensorrt: version it was built with; engines are bound to it. Empty: no TensorRT inside.
        cuda: version in the containers.
        python: version in the containers.
        modelopt: version it is pinned to; empty: not known.
        transformers: version it is pinned to; empty: not known.
        containers: oldest first; empty where none is known to carry it.
        evidence: whether the row was read or concluded.
        note: what is peculiar about it.
    """

    name: str
    tensorrt: str
    cuda: str
    python: str
    modelopt: str
    containers: tuple[Container, ...]
    evidence: Evidence
    transformers: str = ""
    note: str = ""

    @property
    def version(self) -> Version:
        """The parsed name."""
        version = Version.parse(self.name)
        assert version is not None
        return version

    def has(self, feature: Feature) -> bool:
        """Say whether this release has a feature."""
        return self.within(FEATURES[feature])

    def within(self, span: Span) -> bool:
        """Say whether this release lies in a span."""
        since, until = (Version.parse(text) if text else None for text in (span.since, span.until))
        return (since is None or since <= self.version) and (until is None or self.version < until)

    @property
    def container(self) -> Container | None:
        """The newest container that carries it."""
        return self.containers[-1] if self.containers else None

    def __str__(self) -> str:
        return self.name


def _release(
    name: str, tensorrt: str, cuda: str, python: str, modelopt: str, *containers: tuple[str, str, str],
    evidence: Evidence = "known", transformers: str = "", note: str = "",
) -> Release:  # fmt: skip
    boxes = tuple(Container(*each) for each in containers)
    return Release(name, tensorrt, cuda, python, modelopt, boxes, evidence, transformers, note)


#: Oldest first.
RELEASES: tuple[Release, ...] = (
    _release("0.17.0", "10.8.0.43", "12.8.0", "3.12", "0.23", ("25.01", "2.54.0", "570.86.10")),
    _release("0.17.0.post1", "10.8.0.43", "12.8.0.038", "3.12", "0.23", ("25.02", "2.55.0", "570.86.10")),
    _release("0.18.0", "10.9", "12.8.1", "3.12", "0.25", ("25.03", "2.56.0", "570.124")),
    _release("0.18.2", "10.9.0.34", "12.8.1", "3.12", "0.25", ("25.04", "2.57.0", "570.124")),
    _release("0.19.0", "10.9.0.34", "12.8.1.012", "3.12", "0.27", ("25.05", "2.58.0", "570.124.06")),
    _release("0.20.0", "10.10.0.31", "12.9.0.036", "3.12", "0.29", ("25.06", "2.59.0", "575.51"), ("25.07", "2.59.1", "575.51")),
    _release("0.21.0", "10.11.0.33", "12.9.0.043", "3.12", "0.31", ("25.08", "2.60.0", "575.51.03")),
    _release("1.0.0", "10.11.0.33", "12.9.1.010", "3.12", "0.33", ("25.09", "2.61.0", "575.57"), ("25.10", "2.62.0", "575.57.08"), transformers="4.53.1"),
    _release("1.0.3", "10.13.3.9", "13.0.2", "3.12", "", ("25.11", "2.63.0", "580.95.05"), evidence="inferred", note="the matrix says 1.0.3.2510, the branch's Dockerfile 1.2.0rc2: read the version inside"),
    _release("1.1.0", "10.13.3.9", "13.0.2.006", "3.12", "0.37", ("25.12", "2.64.0", "580.95.05"), ("26.01", "2.65.0", "580.95.05"), ("26.02", "2.66.0", "580.95.05"), transformers="4.56"),
    _release("1.2.0", "10.14.1.48", "13.1", "3.12", "", ("26.03", "2.67.0", "590.44"), note="the branch's Dockerfile says 1.2.0rc8"),
    _release("1.2.1", "10.14.1.48", "13.1.0.036", "3.12", "", ("26.04", "2.68.0", "590.44"), ("26.05", "2.69.0", "590.44"), ("26.06", "2.70.0", "590.44"), ("26.07", "2.71.0", "590.44.01")),
    _release("1.3.0rc20", "10.14.1.48", "13.1", "3.12", "", evidence="inferred", note="last candidate with engines; versions of what is inside are those of 1.2.1"),
    _release("1.3.0rc29", "", "", "3.12", "", evidence="inferred", note="no TensorRT inside; documentation seen, no container"),
    _release("1.4.0rc4", "", "", "3.12", "", evidence="inferred", note="no TensorRT inside; documentation seen, no container"),
)  # fmt: skip

#: Before it engines had another schema and other options; trtbuild does not build for them.
OLDEST = "0.17.0"
#: What a deployment is for when it names no release: the last stable one with both backends.
DEFAULT = "1.2.1"


def find_release(typed: str) -> Release:
    """Return the release that a version names: "1.2.1", "v1.0.0", or "1.2" for the newest of a line.

    A version that is not in the table but lies within a known line gets a copy of its nearest older neighbour, marked inferred.

    Raises:
        UsageError: no version, too old, or of a line that is not known.
    """
    version = Version.parse(typed)
    if version is None:
        raise UsageError(f"'{typed}' is no version of TensorRT-LLM", hint=f"write e.g. {DEFAULT}; known: {_known()}")
    by_version = {release.version.numbers: release for release in RELEASES}
    if version.numbers in by_version and version.has_patch:
        return by_version[version.numbers]
    of_line = [release for release in RELEASES if release.version.line == version.line]
    if not version.has_patch and of_line:
        return of_line[-1]
    if version < RELEASES[0].version:
        raise UsageError(
            f"TensorRT-LLM {typed} is older than {OLDEST}, the first release trtbuild knows", hint=f"known: {_known()}"
        )
    if not of_line:
        raise UsageError(f"TensorRT-LLM {typed} is of a line that trtbuild does not know", hint=f"known: {_known()}")
    older = [release for release in of_line if release.version < version]
    near = older[-1] if older else of_line[0]
    tensorrt = near.tensorrt if _precedes_removal(version) else ""
    return Release(
        typed.strip().removeprefix("v"), tensorrt, near.cuda, near.python, near.modelopt, (), "inferred", near.transformers,
        f"not in the table; taken for {near.name}",
    )  # fmt: skip


def release_of_tag(tag: str) -> Release | None:
    """Return the release that a container tag such as 25.08 carries, None when it is not known."""
    return next((each for each in RELEASES for box in each.containers if box.tag == tag), None)


def with_feature(feature: Feature) -> Iterator[Release]:
    """Yield the releases that have a feature, oldest first."""
    return (release for release in RELEASES if release.has(feature))


def _precedes_removal(version: Version) -> bool:
    """Say whether a release still has TensorRT inside; it went away together with engines (checkpoint specification 5)."""
    until = FEATURES[Feature.ENGINE].until
    end = Version.parse(until) if until else None
    return end is None or version < end


def _known() -> str:
    return ", ".join(release.name for release in RELEASES)
