#!/usr/bin/env bash
# install.sh TARGET PARTS: put trtbuild into TARGET, an environment of its own, beside the Python that has tensorrt_llm.
#
# PARTS holds wheels/ and constraints.txt. What the image has already counts: its versions are constraints, its packages are seen behind ours (for
# calibration with its torch), and the script fails if one of them has changed in the end. Versions of what it lacks come from constraints.txt.
set -euo pipefail
target=${1:?folder for the environment} parts=${2:?folder with wheels and constraints.txt}

export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# Newer images keep Python packages in /opt/venv-tritonserver, older ones in the system's Python.
python=''
for candidate in ${IMAGE_PYTHON:-/opt/venv-tritonserver/bin/python3 python3}; do
    if command -v "$candidate" >/dev/null &&
        "$candidate" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("tensorrt_llm") is None)'; then
        python=$candidate
        break
    fi
done
[[ -n $python ]] || { echo 'error: no Python of this image has tensorrt_llm; take a -trtllm-python-py3 image' >&2; exit 1; }

# Packages of the image as name==version, from their metadata: pip freeze would write paths for those that were built there.
versions() {
    "$python" - <<'PYTHON'
import re
from importlib.metadata import distributions

found = {}
for each in distributions():
    found.setdefault(re.sub(r"[-_.]+", "-", each.metadata["Name"] or "").lower(), each.version)
print("\n".join(f"{name}=={version}" for name, version in sorted(found.items()) if name))
PYTHON
}

before=$(versions)
merged=$(mktemp)
printf '%s\n' "$before" >"$merged"
# Of our versions only those of packages that the image lacks.
while IFS= read -r line; do
    name=$(printf '%s' "${line%%==*}" | tr '[:upper:]_.' '[:lower:]--')
    [[ $line == '#'* || -z $line ]] || grep -q "^$name==" "$merged" || printf '%s\n' "$line" >>"$merged"
done <"$parts/constraints.txt"

"$python" -m venv --without-pip "$target"
site=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -m pip --python "$target/bin/python" install --constraint "$merged" "$parts"/wheels/trtbuild-*.whl
"$python" -c 'import site, sysconfig; print("\n".join(dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages()])))' >"$site/zz_image.pth"
rm "$merged"

# Only the command goes on PATH: this environment's `python` must not be the one that Triton's Python models find.
mkdir -p "$target-bin"
ln -sf "$target/bin/trtbuild" "$target-bin/trtbuild"

if [[ $(versions) != "$before" ]]; then
    echo 'error: packages of the image have changed' >&2
    exit 1
fi
"$target/bin/trtbuild" --version
