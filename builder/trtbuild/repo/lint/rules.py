"""The registry of lint rules: id -> rule. The order of the modules is the order of the report."""

from __future__ import annotations

from types import ModuleType

from trtbuild.repo.lint import (
    agreement,
    batching,
    chat_templates,
    code,
    contents,
    devices,
    drafts,
    engines,
    ensemble,
    exposure,
    launch_ranks,
    llmapi,
    names,
    parameters,
    paths,
    public,
    remote_code,
    schedulers,
    syntax,
    tensors,
    wiring,
)
from trtbuild.repo.lint.findings import Rule

#: Heading in docs/lint.md -> the modules that hold its rules; each has a table `RULES`.
SECTIONS: dict[str, tuple[ModuleType, ...]] = {
    "Text and files": (syntax, code, contents, names),
    "Parameters": (parameters,),
    "Batching, instances and GPUs": (batching, devices, schedulers),
    "Tensors": (tensors, public),
    "Ensembles": (ensemble, wiring),
    "Agreement between models": (agreement, drafts, llmapi),
    "Engines": (engines, launch_ranks),
    "Paths and tokenizers": (paths,),
    "Security": (remote_code, chat_templates, exposure),
}

RULES: dict[str, Rule] = {name: rule for modules in SECTIONS.values() for module in modules for name, rule in module.RULES.items()}  # fmt: skip
#: Those that look at files beside the repository, which are not its own.
BESIDE = frozenset([*exposure.RULES, *launch_ranks.RULES])
#: Where a rule is explained.
PAGE = "docs/lint.md"


def section_of(name: str) -> str:
    """Return the heading under which a rule is explained."""
    return next(title for title, modules in SECTIONS.items() if any(name in module.RULES for module in modules))
