"""Rules about what Triton checks of queues, sequences and batched inputs when it loads a model of any kind.

Source: the expected errors of NVIDIA's server tests, qa/L0_model_config/noautofill_platform.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.repository import Repository

_DELAY = 1  # TimeoutAction
_CONTROLS = {0: "CONTROL_SEQUENCE_START", 1: "CONTROL_SEQUENCE_READY", 2: "CONTROL_SEQUENCE_END", 3: "CONTROL_SEQUENCE_CORRID"}  # fmt: skip
_VALUES = ("int32_false_true", "fp32_false_true", "bool_false_true")
#: Kinds of batch_input that count one tensor; the others take its shape.
_COUNTS = frozenset([0, 1, 2, 3])


def queue_policy(repository: Repository) -> Iterator[Problem]:
    """Find priorities out of range, and orders that cannot be kept."""
    for model in repository.parsed():
        batching = model.config.dynamic_batching
        levels, line = batching.priority_levels, model.line("dynamic_batching")
        keys = dict(batching.priority_queue_policy)
        named = [("default_priority_level", batching.default_priority_level)] if levels else []
        named += [("priority_queue_policy", key) for key in sorted(keys)]
        for field, level in named:
            if not 1 <= level <= levels:
                yield Problem(model.file, f"{field} {level} is none of the {levels} priority_levels", f"use 1 to {levels}" if levels else "set priority_levels", line)  # fmt: skip
        if batching.preserve_ordering and levels > 1:
            yield Problem(model.file, f"preserve_ordering with {levels} priority_levels", "use one level, or no order", line)  # fmt: skip
        if batching.preserve_ordering and any(each.timeout_action == _DELAY for each in (batching.default_queue_policy, *keys.values())):  # fmt: skip
            yield Problem(
                model.file, "preserve_ordering with the timeout_action DELAY", "use REJECT, or no order", line
            )


def sequence_control(repository: Repository) -> Iterator[Problem]:
    """Find control tensors of sequences that say two things, or nothing."""
    for model in repository.parsed():
        inputs = model.config.sequence_batching.control_input
        line = model.line("sequence_batching")
        kinds = Counter(control.kind for each in inputs for control in each.control)
        for kind in sorted(kind for kind, count in kinds.items() if count > 1):
            yield Problem(
                model.file, f"{_CONTROLS.get(kind, kind)} is given by {kinds[kind]} tensors", "keep one", line
            )
        tensors = Counter(each.name for each in inputs for _ in each.control)
        for name in sorted(name for name, count in tensors.items() if count > 1):
            yield Problem(model.file, f"control tensor '{name}' is of several kinds", "give each kind its own tensor", line)  # fmt: skip
        for each in inputs:
            for control in each.control:
                if control.kind in (0, 1, 2) and not any(getattr(control, value) for value in _VALUES):
                    yield Problem(model.file, f"control tensor '{each.name}' has none of {', '.join(_VALUES)}", "give it one, e.g. int32_false_true: [ 0, 1 ]", line)  # fmt: skip


def batch_tensor(repository: Repository) -> Iterator[Problem]:
    """Find batch_input and batch_output that name other tensors than the model has, or too many."""
    for model in repository.parsed():
        inputs = {tensor.name for tensor in model.config.input}
        outputs = {tensor.name for tensor in model.config.output}
        targets = Counter(name for each in model.config.batch_output for name in each.target_name)
        for field, entries in (("batch_input", model.config.batch_input), ("batch_output", model.config.batch_output)):
            for each in entries:
                for what in _wrong_sources(each, inputs, counts=field == "batch_output" or each.kind in _COUNTS):
                    yield Problem(model.file, f"{field} of {', '.join(each.target_name)} {what}", "name one input of the model", model.line(field))  # fmt: skip
        for name, count in sorted(targets.items()):
            if count > 1 or name not in outputs:
                what = "is named twice" if count > 1 else "is no output of the model"
                yield Problem(model.file, f"target '{name}' of batch_output {what}", "name each output once", model.line("batch_output"))  # fmt: skip


def _wrong_sources(entry: Any, inputs: set[str], *, counts: bool) -> Iterator[str]:
    sources = list(entry.source_input)
    if counts and len(sources) != 1:
        yield f"has {len(sources)} source inputs, and takes 1"
    for name in (name for name in sources if name not in inputs):
        yield f"takes '{name}', which is no input"


RULES: dict[str, Rule] = {
    "queue-policy": Rule(
        "error", queue_policy, "priorities that a queue does not have, and orders that it cannot keep",
        "`default priority level must be in range`, `Only one priority level is allowed when 'preserve_ordering' is true`: the model does not load (tests of NVIDIA's server).",
        "Use levels from 1 to priority_levels; with preserve_ordering one level, and REJECT.",
    ),
    "sequence-control": Rule(
        "error", sequence_control, "control tensors of sequences that say two things, or nothing",
        "`sequence batching specifies multiple CONTROL_SEQUENCE_START tensors`, and the like: the model does not load (tests of NVIDIA's server).",
        "One tensor of its own for each kind, with its two values.",
    ),
    "batch-tensor": Rule(
        "error", batch_tensor, "`batch_input` and `batch_output` that name tensors which are not there, or too many",
        "`unknown source input name`, `expects 1 source input, got 2`: the model does not load (tests of NVIDIA's server).", "Name one input of the model.",
    ),
}  # fmt: skip
