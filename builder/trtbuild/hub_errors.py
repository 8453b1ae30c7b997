"""What can go wrong between us and the hub, in words a user can act on.

Knows the exceptions of huggingface_hub by name and which text must never be shown.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from trtbuild.errors import TrtbuildError

#: What a download elsewhere has to include: every name that `hub` may fetch, and no pickle or code.
INCLUDE = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt")

#: Exception of huggingface_hub.errors -> (what failed, what to do). The first that fits, so special ones come first.
REFUSALS: dict[str, tuple[str, str]] = {
    "GatedRepoError": (
        "its owner lets in only people who accepted the licence",
        "accept it on the model's page, then set HF_TOKEN to a token of that account",
    ),
    "RepositoryNotFoundError": (
        "there is no such model, or it is private",
        "check owner/name; for a private model set HF_TOKEN to a token that may read it",
    ),
    "RevisionNotFoundError": (
        "it has no such branch, tag or commit",
        "check the part after @, or leave it out for the default branch",
    ),
    "DisabledRepoError": ("the hub has disabled this repository", "choose another model"),
    "HFValidationError": ("the hub does not accept this name", "write it as owner/name or owner/name@revision"),
}
#: HTTP status -> the same, for answers that have no exception of their own.
STATUS: dict[int, tuple[str, str]] = {
    401: ("the hub did not accept the access token", "set HF_TOKEN to a valid token, or unset it for a public model"),
    403: ("the access token may not read this model", "set HF_TOKEN to a token with read access to it"),
    404: ("a file of the model does not exist", "check owner/name and the revision"),
    429: ("the hub limits the rate of requests", "wait a few minutes, or set HF_TOKEN"),
}
#: Failures of this machine's disk, not of the network.
LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
_TOKEN = re.compile(r"hf_[A-Za-z0-9]{4,}|(?<=Bearer )\S+|(?<=//)[^/\s@]+(?=@)")


class DownloadError(TrtbuildError):
    """A model could not be fetched from the hub."""

    def __init__(self, repo: str, message: str, *, hint: str = "") -> None:
        super().__init__(f"cannot fetch {repo} from the Hugging Face hub: {message}", hint=hint)


def missing_library() -> TrtbuildError:
    """Return the error for an installation without huggingface_hub."""
    return TrtbuildError(
        "--download needs the Python package huggingface_hub, which is not installed",
        hint="install it: pip install 'trtbuild[build]', or pip install huggingface_hub",
    )


def elsewhere(repo: str, revision: str | None, folder: Path) -> str:
    """Return how to fetch a model on a machine that reaches the hub, and bring it here."""
    if (folder / "config.json").is_file():
        return f"an earlier download is in {folder}; to use it as it is run: trtbuild init {folder}"
    at = f" --revision {revision}" if revision else ""
    include = " ".join(f"--include '{pattern}'" for pattern in INCLUDE)
    return (
        f"on a machine that reaches the hub run: hf download {repo}{at} {include} --local-dir {folder.name} "
        f"-- then copy that folder to {folder} here and run: trtbuild init {folder}"
    )


def redact(text: str, *secrets: str | None) -> str:
    """Return the text without access tokens: the given ones, and whatever has the shape of one."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return _TOKEN.sub("***", text)


@contextmanager
def translated(hub: ModuleType, repo: str, revision: str | None, folder: Path) -> Iterator[None]:
    """Turn what huggingface_hub raises into a DownloadError.

    Failures of the network are OSError or an exception of the HTTP library, which is httpx, httpx2 or requests
    depending on the release; their common bases are read off HfHubHTTPError.
    """
    errors = hub.errors
    try:
        yield
    except (OSError, errors.HFValidationError, *errors.HfHubHTTPError.__bases__) as error:
        for name, (message, hint) in REFUSALS.items():
            if isinstance(error, getattr(errors, name)):
                raise DownloadError(_full(repo, revision), message, hint=hint) from error
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in STATUS:
            message, hint = STATUS[status]
            raise DownloadError(_full(repo, revision), f"{message} (HTTP {status})", hint=hint) from error
        if getattr(error, "errno", None) in LOCAL:
            raise DownloadError(
                _full(repo, revision), str(error), hint="free some space or choose another place with --models-dir"
            ) from error
        detail = redact(str(error), hub.get_token()).strip().partition("\n")[0]
        raise DownloadError(
            _full(repo, revision), f"{type(error).__name__}: {detail}", hint=elsewhere(repo, revision, folder)
        ) from error


def _full(repo: str, revision: str | None) -> str:
    return f"{repo}@{revision}" if revision else repo
