"""The registry of lint rules: id -> (severity, function). The order is the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trtbuild.repo.lint import agreement, ensemble, syntax, tensors
from trtbuild.repo.lint.findings import Problem, Severity
from trtbuild.repo.lint.repository import Repository

Rule = Callable[[Repository], Iterator[Problem]]

RULES: dict[str, tuple[Severity, Rule]] = {
    "unfilled": ("error", syntax.unfilled),
    "syntax": ("error", syntax.readable),
    "model-name": ("error", syntax.model_name),
    "name-differs": ("error", syntax.name_differs),
    "no-version": ("error", syntax.has_version),
    "no-model-file": ("error", syntax.has_model_file),
    "empty-parameter": ("error", syntax.empty_parameter),
    "duplicate-parameter": ("error", syntax.duplicate_parameter),
    "instance-count": ("error", syntax.instance_count),
    "batch-size": ("error", syntax.batch_size),
    "duplicate-tensor": ("error", tensors.duplicate_tensor),
    "tensor-type": ("error", tensors.datatype),
    "tensor-dims": ("error", tensors.dims),
    "ensemble-member": ("error", ensemble.member_exists),
    "ensemble-tensor": ("error", ensemble.tensor_exists),
    "ensemble-unused": ("error", ensemble.declared_is_used),
    "ensemble-unset": ("error", ensemble.source_exists),
    "ensemble-required": ("error", ensemble.required_is_mapped),
    "ensemble-datatype": ("error", ensemble.datatypes_agree),
    "ensemble-dims": ("error", ensemble.dims_agree),
    "ensemble-batch-size": ("error", ensemble.batch_size_fits),
    "ensemble-scheduling": ("error", ensemble.has_no_instances),
    "batch-sizes-differ": ("warning", agreement.batch_sizes),
    "decoupled-differs": ("error", agreement.decoupled),
    "llmapi-differs": ("error", agreement.llm_api_settings),
    "tokenizer-differs": ("error", agreement.tokenizer_dirs),
    "postprocessing-instances": ("error", agreement.postprocessing_instances),
}
