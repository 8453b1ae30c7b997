"""Measure what the base install takes: wheels to download, room on disk, without torch; and with the extra `triton`.

    python benchmarks/footprint.py                       # builds the wheel of this checkout, installs it into a fresh venv
    python benchmarks/footprint.py --extra triton        # with tritonclient[all]
    python benchmarks/footprint.py --requirement 'trtbuild==0.1.0'

The goals are at most 60 MB of wheels and 180 MB on disk for the base install, with no torch, and a `trtbuild --help` that
works. Exit status 1 when one is missed. It needs a package index, so it is run by hand, not by the tests. MB is 10^6 bytes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
MB = 1e6
#: Goals of the base install, bytes.
MAX_WHEELS, MAX_DISK = 60 * MB, 180 * MB
#: What must not come with the base install.
FORBIDDEN = ("torch", "transformers", "tensorrt", "tensorrt_llm", "nvidia_cuda_runtime", "cuda_python")


def run(*command: str | Path) -> str:
    """Run a command and return what it printed; its errors are shown as they are."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(
        [str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout


def size_of(folder: Path) -> int:
    """Return the bytes of all files of a folder; links count as nothing."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def by_package(site: Path) -> dict[str, int]:
    """Return bytes by top-level name of site-packages, with versions left out of the names."""
    sizes: dict[str, int] = defaultdict(int)
    for path in site.iterdir():
        name = path.name.partition("-")[0].removesuffix(".py").removesuffix(".libs").lower()
        sizes[name] += size_of(path) if path.is_dir() else path.stat().st_size
    return sizes


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extra", action="append", default=[], help="extra to install too (repeatable)")
    parser.add_argument("--requirement", help="what to install instead of this checkout")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trtbuild-footprint-") as folder:
        return measure(Path(folder), arguments.requirement, arguments.extra)


def measure(folder: Path, requirement: str | None, extras: list[str]) -> int:
    """Install into `folder`, print, and return the exit status."""
    venv.create(folder / "venv", with_pip=True)
    python, wheels = folder / "venv" / "bin" / "python", folder / "wheels"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    empty = by_package(site)
    if requirement is None:
        run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels, ROOT)
        (wheel,) = wheels.glob("trtbuild-*.whl")
        requirement = str(wheel)
    wanted = f"{requirement}[{','.join(extras)}]" if extras else requirement
    run(python, "-m", "pip", "download", "-q", "--prefer-binary", "-d", wheels, wanted)
    run(python, "-m", "pip", "install", "-q", "--no-index", "--find-links", wheels, wanted)
    downloads = {path.name: path.stat().st_size for path in wheels.iterdir()}
    installed = {name: size for name, size in by_package(site).items() if name not in empty}
    run(folder / "venv" / "bin" / "trtbuild", "--help")
    run(python, "-c", "import trtbuild_client as c; [getattr(c, name) for name in c.__all__]")
    base = [name for name in FORBIDDEN if name in installed]

    print(f"{'largest wheels':<60}{'MB':>8}")
    for name, size in sorted(downloads.items(), key=lambda item: -item[1])[:10]:
        print(f"{name[:58]:<60}{size / MB:8.1f}")
    print(f"{'largest packages on disk':<60}{'MB':>8}")
    for name, size in sorted(installed.items(), key=lambda item: -item[1])[:10]:
        print(f"{name[:58]:<60}{size / MB:8.1f}")
    wheel_bytes, disk_bytes = sum(downloads.values()), sum(installed.values())
    print(f"{len(downloads)} wheels: {wheel_bytes / MB:.1f} MB (goal {MAX_WHEELS / MB:.0f})")
    print(
        f"on disk, byte-compiled: {disk_bytes / MB:.1f} MB (goal {MAX_DISK / MB:.0f}); pip and setuptools not counted"
    )
    print(f"heavy packages: {', '.join(base) or 'none'}")
    if extras:
        print("goals are those of the base install; with extras nothing is judged")
        return 0
    return int(wheel_bytes > MAX_WHEELS or disk_bytes > MAX_DISK or bool(base))


if __name__ == "__main__":
    sys.exit(main())
