"""Rules about values that several models of a repository for language models must share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.repository import CORE, Model, Repository
from trtbuild.repo.proto import datatype_name

CHAIN = ("preprocessing", CORE, "postprocessing", "ensemble", "tensorrt_llm_bls")

#: Models whose code returns one answer for each request, which a decoupled model may not (Triton specification 8, issue 488).
_SINGLE = ("preprocessing", "postprocessing")


def batch_sizes(repository: Repository) -> Iterator[Problem]:
    """Find models of the chain that take other batches than the core."""
    for model, core in _chain(repository, CHAIN):
        if model.config.max_batch_size != core.config.max_batch_size:
            yield Problem(
                model.file,
                f"max_batch_size is {model.config.max_batch_size}, {core.file} has {core.config.max_batch_size}",
                "use one value for all of them",
                model.line("max_batch_size"),
            )


def decoupled(repository: Repository) -> Iterator[Problem]:
    """Find BLS models that stream where the core does not, or the other way round, and models that never stream and say so."""
    for model in repository.parsed():
        if model.role in _SINGLE and model.config.model_transaction_policy.decoupled:
            yield Problem(
                model.file,
                f"decoupled is true, and {model.role} gives one answer for each request",
                "remove model_transaction_policy",
                model.line("model_transaction_policy"),
            )
    for model, core in _chain(repository, ("tensorrt_llm_bls",)):
        yield from other_decoupling(model, core)


def other_decoupling(model: Model, other: Model) -> Iterator[Problem]:
    """Find a model that is decoupled where one that it works with is not, or the other way round."""
    mine, its = (each.config.model_transaction_policy.decoupled for each in (model, other))
    if mine != its:
        yield Problem(
            model.file,
            f"decoupled is {str(mine).lower()}, {other.file} has {str(its).lower()}",
            "set model_transaction_policy.decoupled to the same value in both",
            model.line("model_transaction_policy"),
        )


def tokenizer_dirs(repository: Repository) -> Iterator[Problem]:
    """Find a postprocessing that decodes with another tokenizer than preprocessing encodes with."""
    roles = {model.role: model for model in repository.parsed()}
    read = [roles[name] for name in ("preprocessing", "postprocessing") if name in roles]
    folders = [model.parameters().get("tokenizer_dir", "") for model in read]
    if len(read) == 2 and PurePosixPath(folders[0]) != PurePosixPath(folders[1]):
        yield Problem(
            read[1].file,
            f"tokenizer_dir is '{folders[1]}', {read[0].file} has '{folders[0]}'",
            "use the same folder in both",
            read[1].parameter_line("tokenizer_dir"),
        )


def postprocessing_instances(repository: Repository) -> Iterator[Problem]:
    """Find a postprocessing with several instances, which would take the pieces of one stream in turns."""
    model = next((model for model in repository.parsed() if model.role == "postprocessing"), None)
    count = sum(max(group.count, 1) for group in model.config.instance_group) if model is not None else 0
    if model is not None and count > 1:
        yield Problem(
            model.file,
            f"postprocessing has {count} instances, streamed text needs 1",
            "set count to 1",
            model.line("instance_group"),
        )


def bls_tensors(repository: Repository) -> Iterator[Problem]:
    """Find tensors that the BLS model hands on with another type than the core has, which no server compares."""
    for model, core in _chain(repository, ("tensorrt_llm_bls",)):
        for side in ("input", "output"):
            theirs = {tensor.name: tensor for tensor in getattr(core.config, side)}
            for tensor in getattr(model.config, side):
                other = theirs.get(tensor.name)
                if (
                    other is not None
                    and 0 not in (other.data_type, tensor.data_type)
                    and other.data_type != tensor.data_type
                ):
                    yield Problem(
                        model.file,
                        f"{side} '{tensor.name}' is {datatype_name(tensor.data_type)}, {core.file} has {datatype_name(other.data_type)}",
                        "declare both with the same data_type",
                        model.tensor_line(side, tensor.name),
                    )  # fmt: skip


def _chain(repository: Repository, names: tuple[str, ...]) -> Iterator[tuple[Model, Model]]:
    """Yield the models of these names with the core, as far as both can be read."""
    core = repository.models.get(CORE)
    for name in names:
        model = repository.models.get(name)
        if core is not None and core.config is not None and model is not None and model.config is not None:
            yield model, core


RULES: dict[str, Rule] = {
    "batch-sizes-differ": Rule(
        "warning", batch_sizes, "models of one chain that take other batches than the core",
        "The smallest counts, and where is hard to see from outside (field report CR05, Triton specification 7.4).", "Use one value for all of them.",
    ),
    "decoupled-differs": Rule(
        "error", decoupled, "a BLS model that streams where the core does not, or the other way round; pre- or postprocessing that is decoupled",
        "`Streaming is only supported if model is deployed using decoupled mode`, whatever the other file says (field report CR07).",
        "Use one value for both; the ensemble has none.",
    ),
    "tokenizer-differs": Rule(
        "error", tokenizer_dirs, "a postprocessing that decodes with another tokenizer than preprocessing encodes with",
        "The answers are another text than the model's (Triton specification 7.4).", "Use the same folder in both.",
    ),
    "postprocessing-instances": Rule(
        "error", postprocessing_instances, "several instances of postprocessing",
        "They take the pieces of one stream in turns, and what one holds back of a character the other does not have. The stock one is stateless, and breaks characters "
        "anyway (Triton specification 1.3).", "Set count to 1.",
    ),
    "bls-datatype": Rule(
        "error", bls_tensors, "tensors of a BLS model that have another type than in the core",
        "Nobody compares them at load time; requests fail, or numbers are read wrongly (Triton specification 7.4, field report CR13).",
        "Declare both with the same type.",
    ),
}  # fmt: skip
