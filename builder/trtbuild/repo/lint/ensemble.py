"""Rules about ensembles: every wire must lead from a tensor that exists to one of the same type and shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtbuild.repo.lint import edits
from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.repository import Model, Repository
from trtbuild.repo.proto import datatype_name


@dataclass(frozen=True, slots=True)
class Wire:
    """One entry of an input_map or output_map.

    Attributes:
        ensemble: the model the map belongs to.
        member: the model of the step; None when the repository has none of that name, or it cannot be read.
        member_name: its name as written.
        side: whether the tensor is an input or an output of the member.
        tensor: name in the member.
        name: name in the ensemble.
    """

    ensemble: Model
    member: Model | None
    member_name: str
    side: Literal["input", "output"]
    tensor: str
    name: str

    def declared(self) -> Any:
        """Return the member's declaration of the tensor, or None."""
        return _declaration(self.member, self.side, self.tensor) if self.member else None


def member_exists(repository: Repository) -> Iterator[Problem]:
    """Find steps that name a model the repository does not have."""
    for model in ensembles(repository):
        for step in model.config.ensemble_scheduling.step:
            if step.model_name not in repository.models:
                yield Problem(
                    model.file,
                    f"a step names the model '{step.model_name}', which does not exist",
                    f"name one of: {', '.join(name for name in repository.models if name != model.folder)}",
                    line_in_step(model, step.model_name),
                )


def tensor_exists(repository: Repository) -> Iterator[Problem]:
    """Find maps that name a tensor the member does not have."""
    for wire in _wires(repository):
        if wire.member is not None and not wire.member.is_completed and wire.declared() is None:
            known = ", ".join(sorted(tensor.name for tensor in getattr(wire.member.config, wire.side)))
            yield Problem(
                wire.ensemble.file,
                f"{wire.side} '{wire.tensor}' of '{wire.member_name}' does not exist",
                f"it has: {known}",
                line_in_step(wire.ensemble, wire.tensor, wire.member_name),
            )


def declared_is_used(repository: Repository) -> Iterator[Problem]:
    """Find inputs and outputs of an ensemble that no step takes or makes."""
    for model in ensembles(repository):
        for side in ("input", "output"):
            mapped = {wire.name for wire in wires_of(repository, model) if wire.side == side}
            for tensor in getattr(model.config, side):
                if tensor.name not in mapped:
                    yield Problem(
                        model.file,
                        f"{side} '{tensor.name}' is not in any {side}_map",
                        "map it, or remove the declaration",
                        model.tensor_line(side, tensor.name),
                    )
        taken = {wire.name for wire in wires_of(repository, model) if wire.side == "input"}
        taken |= {tensor.name for tensor in model.config.output}
        for wire in wires_of(repository, model):
            if wire.side == "output" and wire.name not in taken:
                yield Problem(
                    model.file,
                    f"'{wire.name}', output '{wire.tensor}' of '{wire.member_name}', is taken by no step",
                    "remove it from the output_map, or declare it as an output",
                    line_in_step(model, wire.tensor, wire.member_name),
                )


def source_exists(repository: Repository) -> Iterator[Problem]:
    """Find inputs of a step that nothing feeds, and tensors that two steps make."""
    for model in ensembles(repository):
        wires = list(wires_of(repository, model))
        sources = [wire.name for wire in wires if wire.side == "output"]
        fed = {tensor.name for tensor in model.config.input} | set(sources)
        for wire in wires:
            if wire.side == "input" and wire.name not in fed:
                yield Problem(
                    model.file,
                    f"input '{wire.tensor}' of '{wire.member_name}' takes '{wire.name}', which nothing makes",
                    "name an input of the ensemble or an output of a step",
                    line_in_step(model, wire.tensor, wire.member_name),
                )
        for name in sorted({name for name in sources if sources.count(name) > 1}):
            yield Problem(model.file, f"'{name}' is made by more than one step", "give each its own name")


def required_is_mapped(repository: Repository) -> Iterator[Problem]:
    """Find steps that leave out an input their model needs."""
    for model in ensembles(repository):
        for step in model.config.ensemble_scheduling.step:
            member = repository.models.get(step.model_name)
            for tensor in member.config.input if member and member.config is not None else ():
                if not tensor.optional and tensor.name not in step.input_map:
                    yield Problem(
                        model.file,
                        f"'{step.model_name}' needs the input '{tensor.name}', not mapped",
                        "map it",
                        line_in_step(model, step.model_name),
                    )


def datatypes_agree(repository: Repository) -> Iterator[Problem]:
    """Find wires between tensors of different types."""
    for wire, owner, here, there in connections(repository):
        if 0 not in (here.data_type, there.data_type) and here.data_type != there.data_type:
            yield Problem(
                wire.ensemble.file,
                f"{wire.side} '{wire.tensor}' of '{wire.member_name}' is {datatype_name(here.data_type)}, "
                f"{_other_end(wire, owner)} '{wire.name}' is {datatype_name(there.data_type)}",
                "declare both with the same data_type",
                line_in_step(wire.ensemble, wire.tensor, wire.member_name),
            )


def dims_agree(repository: Repository) -> Iterator[Problem]:
    """Find wires between tensors whose shapes can never be equal: -1 fits everything, and batches may be one more dimension."""
    for wire, owner, here, there in connections(repository):
        member = wire.member or owner
        if not (_fit(here.dims, there.dims) or _fit(_shape(member, here), _shape(owner, there))):
            yield Problem(
                wire.ensemble.file,
                f"{wire.side} '{wire.tensor}' of '{wire.member_name}' has dims {list(here.dims)}, "
                f"{_other_end(wire, owner)} '{wire.name}' has {list(there.dims)}",
                "declare both with the same dims",
                line_in_step(wire.ensemble, wire.tensor, wire.member_name),
            )


def batch_size_fits(repository: Repository) -> Iterator[Problem]:
    """Find ensembles that take larger batches than one of their members."""
    for model in ensembles(repository):
        for step in model.config.ensemble_scheduling.step:
            member = repository.models.get(step.model_name)
            if member is None or member.config is None or member.is_completed:
                continue
            # A member without batches takes what the ensemble takes as one more dimension.
            if model.config.max_batch_size > member.config.max_batch_size > 0:
                yield Problem(
                    model.file,
                    f"max_batch_size {model.config.max_batch_size} exceeds the {member.config.max_batch_size} of '{member.folder}'",
                    f"use at most {member.config.max_batch_size}",
                    model.line("max_batch_size"),
                )


def has_no_instances(repository: Repository) -> Iterator[Problem]:
    """Find settings that an ensemble may not have, because its members have them."""
    for model in ensembles(repository):
        for field, wrong in (
            ("instance_group", "an ensemble cannot have an instance_group"),
            ("model_transaction_policy", "an ensemble takes its model_transaction_policy from its members"),
            ("optimization", "an ensemble cannot have an optimization"),
        ):
            node = model.tree.first(field)
            if node is not None:
                edit = edits.remove(model, node, f"remove {field}")
                yield Problem(model.file, wrong, "remove it", model.line_of(node), edit)


def line_in_step(model: Model, name: str, member: str = "") -> int:
    """Return the line of a step's map entry of that key, or of the step of that model; 0 when there is none."""
    text = model.text or ""
    for step in model.tree.all("ensemble_scheduling", "step"):
        called = step.first("model_name")
        is_step = called is not None and called.text(text) in (member, name)
        entries = (key for kind in ("input_map", "output_map") for key in step.all(kind, "key")) if member else ()
        if is_step and (found := next((key for key in entries if key.text(text) == name), called)) is not None:
            return model.line_of(found)
    return 0


def ensembles(repository: Repository) -> Iterator[Model]:
    """Return the models that are put together from others."""
    return (model for model in repository.parsed() if model.is_ensemble)


def wires_of(repository: Repository, model: Model) -> Iterator[Wire]:
    """Yield the wires of one ensemble."""
    for step in model.config.ensemble_scheduling.step:
        member = repository.models.get(step.model_name)
        readable = member if member is not None and member.config is not None else None
        for tensor, name in step.input_map.items():
            yield Wire(model, readable, step.model_name, "input", tensor, name)
        for tensor, name in step.output_map.items():
            yield Wire(model, readable, step.model_name, "output", tensor, name)


def _wires(repository: Repository) -> Iterator[Wire]:
    for model in ensembles(repository):
        yield from wires_of(repository, model)


def connections(repository: Repository) -> Iterator[tuple[Wire, Model, Any, Any]]:
    """Yield each wire with the model at its other end, the ensemble or the member of another step, and the declarations of both ends."""
    for model in ensembles(repository):
        wires = list(wires_of(repository, model))
        made = {wire.name: wire for wire in wires if wire.side == "output"}
        for wire in wires:
            here, owner = wire.declared(), model
            there = _declaration(model, wire.side, wire.name)
            if there is None and wire.side == "input" and (maker := made.get(wire.name)) is not None:
                there, owner = maker.declared(), maker.member or model
            if here is not None and there is not None:
                yield wire, owner, here, there


def _other_end(wire: Wire, owner: Model) -> str:
    return f"the ensemble's {wire.side}" if owner is wire.ensemble else "the step's tensor"


def _fit(ours: Sequence[int], theirs: Sequence[int]) -> bool:
    return len(ours) == len(theirs) and all(-1 in (a, b) or a == b for a, b in zip(ours, theirs, strict=True))


def _shape(model: Model, tensor: Any) -> list[int]:
    """Return a tensor's shape with the dimension of batches, where the model takes any."""
    return [-1, *tensor.dims] if model.config.max_batch_size > 0 else list(tensor.dims)


def _declaration(model: Model, side: str, name: str) -> Any:
    return next((tensor for tensor in getattr(model.config, side) if tensor.name == name), None)


RULES: dict[str, Rule] = {
    "ensemble-member": Rule(
        "error", member_exists, "steps that name a model that does not exist",
        "The server says `contains models that are not available or ambiguous` (Triton specification 7.3).", "Name a model of the repository.",
    ),
    "ensemble-tensor": Rule(
        "error", tensor_exists, "maps that name a tensor that the member does not have",
        "The server says `is mapping to non-existing input` (Triton specification 7.3).", "Name one of the member's tensors.",
    ),
    "ensemble-unused": Rule(
        "error", declared_is_used, "inputs and outputs of an ensemble, and tensors between its steps, that nothing takes or makes",
        "The server says `is not used` (Triton specification 7.3).", "Map it, or remove the declaration.",
    ),
    "ensemble-unset": Rule(
        "error", source_exists, "inputs of a step that nothing feeds, and tensors that two steps make",
        "The server does not load the ensemble.", "Name an input of the ensemble or an output of one step.",
    ),
    "ensemble-required": Rule(
        "error", required_is_mapped, "steps that leave out an input that their model needs",
        "The server does not load the ensemble, or every request fails (field report CR16).", "Map it, or make it optional in the member.",
    ),
    "ensemble-datatype": Rule(
        "error", datatypes_agree, "wires between tensors of different types",
        "The server says `inconsistent data type` (Triton specification 7.3). The usual cause: `logits_datatype` or `prompt_embedding_table_data_type` filled "
        "differently, or in one file only.", "Declare both ends with the same type.",
    ),
    "ensemble-dims": Rule(
        "error", dims_agree, "wires between tensors whose shapes can never be equal",
        "The server says `inconsistent shape` (Triton specification 7.3); -1 fits everything.", "Declare both ends with the same dims.",
    ),
    "ensemble-batch-size": Rule(
        "error", batch_size_fits, "ensembles that take larger batches than one of their members",
        "The server says `allows maximum batch size 8, but it contains model m which only allows` (Triton specification 7.3).",
        "Use at most the smallest of the members.",
    ),
    "ensemble-scheduling": Rule(
        "error", has_no_instances, "instances, a transaction policy or an optimization on an ensemble",
        "An ensemble has neither: `instance group should not be specified` (Triton specification 1.4, 7.3).", "Remove it; `--fix` does.",
    ),
}  # fmt: skip
