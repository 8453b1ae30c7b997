"""Which TensorRT-LLM, TensorRT, torch, transformers and Triton are here, and what the container says it is. Imports none of them.

A container's label only names it (field report VC06), so versions are read where they are loaded from: the library that a running server has
mapped, else the first that the loader would find, else the metadata of the package that Python would import. Every other copy is listed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtbuild.trtllm.compatibility import Copy, Installed, numbers, same_version

#: Packages that are looked for, as normalized names. The TensorRT wheels come in parts and per CUDA version.
PACKAGES = re.compile(
    r"tensorrt-llm|tensorrt(?:-cu\d+)?(?:-libs|-bindings)?|torch|transformers|nvidia-modelopt|tritonserver|tritonclient|nvidia-pytriton"
)
_TENSORRT = re.compile(r"tensorrt(?:-cu\d+)?(?:-libs|-bindings)?")
#: Where other interpreters of a container keep packages; trtbuild can live in an environment of its own beside them.
SITE_FOLDERS = (
    "usr/local/lib/python3*/dist-packages", "usr/local/lib/python3*/site-packages", "usr/lib/python3/dist-packages", "opt/venv*/lib/python3*/site-packages",
)  # fmt: skip
#: Where libraries of a Triton container lie, after LD_LIBRARY_PATH.
LIBRARY_FOLDERS = (
    "usr/local/tensorrt/lib", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/local/lib", "opt/tritonserver/lib",
    "opt/tritonserver/backends/tensorrtllm",
)  # fmt: skip
BACKENDS = "opt/tritonserver/backends"
SONAME = "libnvinfer.so"
#: Folder of metadata: name, version, and for Debian's packages the Python.
_INFO = re.compile(r"([A-Za-z0-9_.-]+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
#: Any one of these says that this is a container.
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")
_MAPPED = re.compile(rf"\s(/\S*{re.escape(SONAME)}\.[\d.]+)$", re.M)


@dataclass(frozen=True, slots=True)
class Software:
    """What is installed.

    Attributes:
        packages: name -> copies, the one that Python imports first.
        libraries: copies of TensorRT's library, the one that is loaded first.
        is_container: whether this is a container.
        tag: of a Triton container, e.g. "26.07"; empty when the environment does not say.
        claimed_tensorrt: TRT_VERSION of the container; a label.
        backends: names of Triton's backends.
    """

    packages: Mapping[str, tuple[Copy, ...]]
    libraries: tuple[Copy, ...]
    is_container: bool
    tag: str
    claimed_tensorrt: str
    backends: frozenset[str]

    def version(self, package: str) -> str:
        """Return the version of the copy that is imported, empty when there is none."""
        copies = self.packages.get(package)
        return copies[0].version if copies else ""

    @property
    def tensorrt(self) -> str:
        """Version of TensorRT that is loaded; the number a file name lacks is taken from a package or the label that agrees."""
        wheel = next((copies[0].version for name, copies in self.packages.items() if _TENSORRT.fullmatch(name)), "")
        if not self.libraries:
            return wheel
        loaded = self.libraries[0].version
        fuller = [text for text in (wheel, self.claimed_tensorrt) if text and same_version(text, loaded)]
        return max([loaded, *fuller], key=lambda text: len(numbers(text)))

    @property
    def tensorrt_copies(self) -> tuple[Copy, ...]:
        """Every copy of TensorRT."""
        wheels = (copy for name, copies in self.packages.items() if _TENSORRT.fullmatch(name) for copy in copies)
        return (*self.libraries, *wheels)

    def installed(self, sms: tuple[int, ...] = ()) -> Installed:
        """Return the facts that compatibility rules ask for."""
        return Installed(
            "this machine", self.version("tensorrt-llm"), self.tensorrt, self.version("transformers"), sms, self.tag,
            self.tensorrt_copies,
        )  # fmt: skip


def read_software(environment: Mapping[str, str], root: Path = Path("/"), search: Iterable[str] = ()) -> Software:
    """Return what is installed.

    Args:
        environment: for the container's variables and LD_LIBRARY_PATH.
        root: root of the file system.
        search: folders of packages, in the order of the interpreter; empty: sys.path of this one.
    """
    return Software(
        packages=_packages([*(search or sys.path), *_existing(root, SITE_FOLDERS)]),
        libraries=tuple(_libraries(environment, root)),
        is_container=any((root / name).exists() for name in _CONTAINER_FILES)
        or "KUBERNETES_SERVICE_HOST" in environment,
        tag=environment.get("NVIDIA_TRITON_SERVER_VERSION", ""),
        claimed_tensorrt=environment.get("TRT_VERSION", ""),
        backends=frozenset(path.name for path in (root / BACKENDS).glob("*") if path.is_dir()),
    )


def _existing(root: Path, patterns: Iterable[str]) -> list[str]:
    return [str(folder) for pattern in patterns for folder in sorted(root.glob(pattern))]


def installed_packages(folders: Iterable[str]) -> Iterator[Copy]:
    """Yield every package of some folders by the name of its metadata, which is not read: there may be hundreds."""
    for folder in dict.fromkeys(folder or "." for folder in folders):
        for info in sorted(Path(folder).glob("*-*.*-info")):
            if match := _INFO.fullmatch(info.name):
                yield Copy(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2], folder)


def _packages(folders: Iterable[str]) -> dict[str, tuple[Copy, ...]]:
    found: dict[str, dict[str, Copy]] = {}
    for copy in installed_packages(folders):
        if PACKAGES.fullmatch(copy.name):
            found.setdefault(copy.name, {}).setdefault(copy.path, copy)
    return {name: tuple(copies.values()) for name, copies in sorted(found.items())}


def _libraries(environment: Mapping[str, str], root: Path) -> Iterator[Copy]:
    """Yield each copy of TensorRT's library once: what a server has mapped, then in the loader's order."""
    seen = set()
    folders = [*filter(None, environment.get("LD_LIBRARY_PATH", "").split(":")), *(str(root / folder) for folder in LIBRARY_FOLDERS)]  # fmt: skip
    on_disk = (file for folder in folders for file in sorted(Path(folder).glob(f"{SONAME}.*")))
    for file in (*_mapped(root / "proc"), *on_disk):
        real = file.resolve()
        version = real.name.removeprefix(f"{SONAME}.")
        if real not in seen and real.is_file() and numbers(version):
            seen.add(real)
            yield Copy(SONAME, version, str(real))


def _mapped(proc: Path) -> Iterator[Path]:
    """Yield the TensorRT libraries that running tritonservers have mapped, as far as their maps may be read."""
    for name in sorted(proc.glob("[0-9]*/comm")):
        try:
            if name.read_text(encoding="utf-8", errors="replace").strip() == "tritonserver":
                maps = (name.parent / "maps").read_text(encoding="utf-8", errors="replace")
                yield from (Path(path) for path in dict.fromkeys(_MAPPED.findall(maps)))
        except OSError:  # ended meanwhile, or of another user
            continue
