"""Which modules adapter_config.json gives an adapter: PEFT loads A and B of those alone and leaves the others out, with a warning.

Source: PEFT 0.21, tuners/tuners_utils.py, `check_target_module_exists` (0.15 to 0.21 decide alike).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError

#: In place of names: every linear module.
_ALL = "all-linear"


@dataclass(frozen=True, slots=True)
class Selection:
    """Modules by name; a text is a regular expression for whole names, a tuple holds names or their ends after a dot.

    Attributes:
        targets: `target_modules`, None for every module.
        excluded: `exclude_modules`.
        layers: `layers_to_transform`, None for every layer.
        layer_lists: `layers_pattern`: names of the lists of layers, none for any.
    """

    targets: str | tuple[str, ...] | None
    excluded: str | tuple[str, ...]
    layers: tuple[int, ...] | None
    layer_lists: tuple[str, ...]

    @classmethod
    def read(cls, path: Path, config: Mapping[str, Any]) -> Selection:
        """Read the fields of adapter_config.json.

        Raises:
            TrtbuildError: one of them is of another type, or no regular expression.
        """
        targets = _names(path, config, "target_modules")
        layers = config.get("layers_to_transform")
        listed = [layers] if isinstance(layers, int) and not isinstance(layers, bool) else layers
        if listed is not None and not (isinstance(listed, list) and all(type(layer) is int for layer in listed)):
            raise TrtbuildError(
                f"{path}: layers_to_transform={layers!r} is neither a layer nor a list of them",
                hint=f"repair {path.name}",
            )
        lists = _names(path, config, "layers_pattern") or ()
        names = (lists,) if isinstance(lists, str) else lists
        for name in names:
            _require_pattern(path, "layers_pattern", name)
        is_all = isinstance(targets, str) and targets.lower() == _ALL
        return cls(
            targets=None if is_all else targets or None,
            excluded=_names(path, config, "exclude_modules") or (),
            layers=tuple(listed) if listed else None,
            layer_lists=names,
        )

    def takes(self, module: str) -> bool:
        """Say whether PEFT gives a module, for example "model.layers.0.self_attn.q_proj", an adapter."""
        if _matches(self.excluded, module):
            return False
        if self.targets is None or not _matches(self.targets, module):
            return self.targets is None
        # layers go with ends of names only
        return isinstance(self.targets, str) or module in self.targets or self._in_layers(module)

    def _in_layers(self, module: str) -> bool:
        if self.layers is None:
            return True
        patterns = [rf"(?:^|.*?\.){name}\.(\d+)\." for name in self.layer_lists] or [r".*?\.[^.]*\.(\d+)\."]
        found = next((match for pattern in patterns if (match := re.match(pattern, module))), None)
        return found is not None and int(found[1]) in self.layers


def _matches(names: str | tuple[str, ...], module: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _names(path: Path, config: Mapping[str, Any], field: str) -> str | tuple[str, ...] | None:
    value = config.get(field)
    if isinstance(value, str):
        _require_pattern(path, field, value)
        return value
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TrtbuildError(
            f"{path}: {field}={value!r} is neither a list of names nor a regular expression", hint=f"repair {path.name}"
        )
    return tuple(value)


def _require_pattern(path: Path, field: str, text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise TrtbuildError(
            f"{path}: {field} has {text!r}, which is not a regular expression: {error}", hint=f"repair {path.name}"
        ) from error
