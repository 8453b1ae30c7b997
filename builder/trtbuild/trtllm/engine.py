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
            TrtbuildError: it is none, or of a generation before build_config and pretrained_config (field report VC03).
        """
        file = path / "config.json"
        config = read_json(file)
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
        return cls(path, str(config.get("version", "")), pretrained, build)

    @property
    def plugins(self) -> Mapping[str, Any]:
        """The plugin_config; empty when an old builder wrote none."""
        found = self.build.get("plugin_config")
        return found if isinstance(found, dict) else {}

    @property
    def mapping(self) -> Mapping[str, int]:
        """tp_size, pp_size, cp_size and world_size."""
        found = self.pretrained.get("mapping") or {}
        tp_size, pp_size, cp_size = (int(found.get(key, 1)) for key in ("tp_size", "pp_size", "cp_size"))
        world_size = int(found.get("world_size", tp_size * pp_size * cp_size))
        return {"tp_size": tp_size, "pp_size": pp_size, "cp_size": cp_size, "world_size": world_size}

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
        """Requests the engine takes at most."""
        return int(self.build["max_batch_size"])

    @property
    def logits_dtype(self) -> str:
        """dtype of its logits."""
        return str(self.pretrained.get("logits_dtype", "float32"))
