"""Say whether the running Python can be the one of .venv; runs on any Python 3.6 or later, before anything is installed.

Exit code 0: yes. 2: no, and one line says why. 3: yes, except that tritonserver cannot embed it; one line says why.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

OLDEST, NEWEST = (3, 10), (3, 13)


def main():
    """Check the version, then venv, then the shared library; return the exit code."""
    name = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        sys.stdout.write(f"is Python {name}; 3.10 to 3.13 are supported\n")
        return 2
    if find_spec("ensurepip") is None or find_spec("venv") is None:  # Debian keeps the first in a package of its own
        sys.stdout.write(f"is Python {name} without venv; Debian or Ubuntu: apt-get install python{name}-venv\n")
        return 2
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "builder"))
    from trtbuild.errors import TrtbuildError
    from trtbuild.serve.python_stub import find_libpython, refuse_unusual_builds

    try:
        refuse_unusual_builds()
        find_libpython()
    except TrtbuildError as error:
        sys.stdout.write(f"{error.message}; {error.hint}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
