"""Whether the tensors of a checkpoint are those that its config files describe. Knows headers; knows no layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trtbuild.errors import TrtbuildError
from trtbuild.layout import StoredTensor
from trtbuild.safetensors_file import TensorInfo

#: Problems listed before the rest is only counted.
_LISTED = 10


def check_stored(
    where: str, found: Mapping[str, TensorInfo], expected: Iterable[StoredTensor], *, configs: str, hint: str
) -> None:
    """Compare what files hold with what they should, in both directions.

    Args:
        where: the file or folder, for the message.
        found: name -> tensor of the files.
        expected: what should be there.
        configs: what says so, for the message.
        hint: what to do.

    Raises:
        TrtbuildError: a tensor is missing, surplus, or of another dtype or shape.
    """
    by_name = {tensor.name: tensor for tensor in expected}
    problems = [f"missing: {name}" for name in by_name if name not in found]
    problems += [f"surplus: {name}" for name in found if name not in by_name]
    problems += [
        f"{name} is {found[name].dtype} {list(found[name].shape)}, expected {tensor.dtype} {list(tensor.shape)}"
        for name, tensor in by_name.items()
        if name in found and (found[name].dtype, found[name].shape) != (tensor.dtype, tensor.shape)
    ]
    if problems:
        more = f" and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        raise TrtbuildError(f"{where} does not fit its {configs}: {'; '.join(problems[:_LISTED])}{more}", hint=hint)
