"""CONTRIBUTING.md sends people to files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: Named as what a contributor will create.
TO_BE_CREATED = {"builder/trtbuild/arch/phi.py", "builder/trtbuild/trtllm/versions.py"}


def test_every_path_that_is_named_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:builder|model_repo_templates|tests|docs)/[\w./-]+)`", text))
    assert len(named) > 8
    missing = {path for path in named if not re.search("[A-Z]{3}", path) and not (ROOT / path).exists()}
    assert missing <= TO_BE_CREATED


def test_every_registry_that_is_named_exists() -> None:
    from trtbuild.arch.registry import ARCHITECTURES, MODEL_TYPES
    from trtbuild.names import QUANTIZATIONS
    from trtbuild.repo.context import VARIANTS
    from trtbuild.repo.lint.rules import RULES

    text = (ROOT / "CONTRIBUTING.md").read_text()
    registries = {
        "ARCHITECTURES": ARCHITECTURES,
        "MODEL_TYPES": MODEL_TYPES,
        "QUANTIZATIONS": QUANTIZATIONS,
        "VARIANTS": VARIANTS,
        "RULES": RULES,
    }
    for name, registry in registries.items():
        assert f"`{name}`" in text
        assert registry
