#!/bin/sh
# Run the tests of the Python that is shipped to servers under other releases of transformers, each in an environment of its own.
# Usage: scripts/test_transformers.sh [RELEASE ...]     (default: 4.46 4.57); TRANSFORMERS_VENVS keeps the environments.
# The network is used for pip only.
set -eu
cd "$(dirname "$0")/.."
folder="${TRANSFORMERS_VENVS:-${TMPDIR:-/tmp}/trtbuild-transformers}"
[ $# -gt 0 ] || set -- 4.46 4.57
for release in "$@"; do
    venv="$folder/$release"
    if [ ! -x "$venv/bin/pytest" ]; then
        "${PYTHON:-python3}" -m venv "$venv"
        "$venv/bin/pip" install -q "transformers==$release.*" tokenizers numpy jinja2 pytest pytest-timeout hypothesis sentencepiece protobuf \
            pydantic pyyaml click safetensors ml-dtypes packaging rich "tritonclient[grpc]"
    fi
    echo "== transformers $release"
    "$venv/bin/pytest" -q -m "not triton" -W default -p no:cacheprovider tests/unit/templates
done
