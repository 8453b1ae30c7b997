"""The one place that imports torch and transformers for calibration, with a clear error where they are missing."""

from __future__ import annotations

from types import ModuleType

from trtbuild.errors import TrtbuildError

_HINT = "pip install 'trtbuild[build]'"


def torch() -> ModuleType:
    """Return torch.

    Raises:
        TrtbuildError: it is not installed.
    """
    try:
        import torch as module
    except ImportError as error:
        raise TrtbuildError(f"calibration needs torch, which cannot be imported: {error}", hint=_HINT) from error
    return module  # type: ignore[no-any-return]  # follow_imports=skip makes it Any


def transformers() -> ModuleType:
    """Return transformers, told to be quiet; who loads from it passes `local_files_only`.

    Raises:
        TrtbuildError: it is not installed.
    """
    try:
        import transformers as module
    except ImportError as error:
        raise TrtbuildError(
            f"tokenizers and models need transformers, which cannot be imported: {error}", hint=_HINT
        ) from error
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module  # type: ignore[no-any-return]  # follow_imports=skip makes it Any
