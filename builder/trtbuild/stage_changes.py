"""Why a stage of a build is of other inputs: which keys of trtbuild.yaml, which files, or which version. Reads nothing.

Compares what the manifest recorded (`stages.stage_inputs`, `manifest.source_identity`) with what is asked for now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtbuild.init_file import scalar
from trtbuild.stages import FILES_OF

#: Longest value that is shown whole, characters.
_SHOWN = 60


def changes(entry: Mapping[str, Any], inputs: Mapping[str, Any], source: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a stage depends on and is another than it was; nothing where the manifest does not say.

    Args:
        entry: of the stage in the manifest.
        inputs: of the stage now, as `stages.stage_inputs` returns them.
        source: the model folder now, as `manifest.source_identity` returns it.
    """
    before = entry.get("inputs")
    if isinstance(before, Mapping):
        for key, now in inputs.items():
            if key in before and before[key] != now:
                yield (
                    f"{key} changed"
                    if key.startswith(FILES_OF)
                    else f"{key} was {_shown(before[key])}, now {_shown(now)}"
                )
    made_from = entry.get("source")
    if isinstance(made_from, Mapping) and made_from.get("path") == source["path"]:
        yield from _changes_of_source(made_from, source)


def changes_of_checkpoint(
    written: Mapping[str, Any], inputs: Mapping[str, Any], source: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the same of a checkpoint by itself, whose manifest has the deployment instead of inputs.

    Args:
        written: the manifest.
        inputs: of the checkpoint now, as `stages.stage_inputs` returns them.
        source: the model folder now.
    """
    before = {"trtbuild": written["trtbuild"]}
    for key in inputs:
        node: Any = written["deployment"]
        *sections, last = key.split(".")
        for part in sections:
            node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping) and last in node:
            before[key] = node[last]
    yield from changes({"inputs": before, "source": written["source"]}, inputs, source)


def _changes_of_source(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if before.get("config_sha256") != now["config_sha256"]:
        yield f"config.json of {now['path']} changed"
    files = before.get("files")
    changed = [file["name"] for file in now["files"] if not isinstance(files, list) or file not in files]
    if changed or files != now["files"]:
        yield f"weights of {now['path']} changed" + (f" ({', '.join(changed[:3])})" if changed else "")


def _shown(value: Any) -> str:
    text = scalar(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
