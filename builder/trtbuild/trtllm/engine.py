"""The folder that `trtllm-build` writes: what its config.json says, and what a server or a build has to take from it.

Layout: checkpoint specification 4.10. Reads no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.source import read_json

#: `SpeculativeDecodingMode`, whose numbers build_config holds (tensorrt_llm/models/modeling_utils.py; an IntFlag, so powers of two).
_SPECULATION = ("none", "draft_tokens_external", "medusa", "lookahead_decoding", "explicit_draft_tokens", "eagle")
#: More ranks than any machine has; a config.json that says more is damaged.
MOST_RANKS = 2**16


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine folder.

    Attributes:
        path: the folder.
        version: of the TensorRT-LLM that built it, as `config.json` says.
        pretrained: the checkpoint's configuration, completed by the builder.
        build: the BuildConfig.
    """

    path: Path
    version: str
    pretrained: Mapping[str, Any]
    build: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> Engine:
        """Read config.json of an engine folder.

        Raises:
            TrtbuildError: it is none, its mapping holds no sizes, or it is of a generation before build_config and pretrained_config (field report VC03).
        """
        file = path / "config.json"
        config = read_json(file, remedy="copy the whole engine folder again, or build the engine again")
        if "builder_config" in config:
            raise TrtbuildError(
                f"{file} has builder_config: this engine was built by TensorRT-LLM before 0.8, which no supported release can load",
                hint="build the engine again from the checkpoint, with the release that will serve it",
            )
        build, pretrained = config.get("build_config"), config.get("pretrained_config")
        if not isinstance(build, dict) or not isinstance(pretrained, dict):
            raise TrtbuildError(
                f"{file} has no build_config and pretrained_config: {path} is not an engine folder",
                hint="name the folder that trtllm-build wrote",
            )
        _check_sections(file, build, ("plugin_config", "lora_config"))
        _check_sections(file, pretrained, ("mapping", "quantization"))
        found = cls(path, str(config.get("version", "")), pretrained, build)
        if max(found.mapping.values()) > MOST_RANKS:  # its sizes are numbers
            raise TrtbuildError(
                f"{file}: pretrained_config.mapping says {max(found.mapping.values())} ranks",
                hint="copy the file again",
            )
        return found

    @property
    def plugins(self) -> Mapping[str, Any]:
        """The plugin_config; empty when an old builder wrote none."""
        found = self.build.get("plugin_config")
        return found if isinstance(found, dict) else {}

    @property
    def mapping(self) -> Mapping[str, int]:
        """tp_size, pp_size, cp_size, moe_ep_size and world_size.

        Raises:
            TrtbuildError: one is no whole number of 1 or more.
        """
        found = self.pretrained.get("mapping") or {}
        sizes = {key: self._size(found, key, 1) for key in ("tp_size", "pp_size", "cp_size")}
        ranks = sizes["tp_size"] * sizes["pp_size"] * sizes["cp_size"]
        # moe_ep_size is -1 where it was left to TensorRT-LLM.
        experts = found.get("moe_ep_size")
        return {
            **sizes,
            "moe_ep_size": self._size(found, "moe_ep_size", 1) if experts != -1 else 1,
            "world_size": self._size(found, "world_size", ranks),
        }

    def _size(self, mapping: Mapping[str, Any], key: str, default: int) -> int:
        value = default if mapping.get(key) is None else mapping[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise TrtbuildError(
                f"{self.path / 'config.json'}: mapping.{key} = {value!r} is no number of ranks",
                hint="build or convert it again",
            )
        return value

    @property
    def speculation(self) -> str:
        """Its speculative_decoding_mode as trtllm-build writes it on its command line, "none", a number that is not known, or empty where it says nothing."""
        if "speculative_decoding_mode" not in self.build:
            return ""
        found = str(self.build["speculative_decoding_mode"] or "none").rpartition(".")[2].lower()
        numbers = {str(1 << position): name for position, name in enumerate(_SPECULATION)}
        return numbers.get(found, found)

    @property
    def max_batch_size(self) -> int:
        """Requests the engine takes at most.

        Raises:
            TrtbuildError: config.json does not say.
        """
        found = self.build.get("max_batch_size")
        if not isinstance(found, int):
            raise TrtbuildError(
                f"{self.path / 'config.json'}: max_batch_size of build_config is {found!r}, not a number",
                hint="copy the whole engine folder again, or build the engine again",
            )
        return found

    @property
    def logits_dtype(self) -> str:
        """dtype of its logits."""
        return str(self.pretrained.get("logits_dtype", "float32"))


def _check_sections(file: Path, section: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Refuse a part of config.json that should be an object and is none."""
    for name in names:
        if not isinstance(section.get(name) or {}, dict):
            raise TrtbuildError(
                f"{file}: {name} is a {type(section[name]).__name__}, not an object",
                hint="name the folder that trtllm-build wrote, or build it again",
            )
