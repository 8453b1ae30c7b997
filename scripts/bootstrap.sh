#!/usr/bin/env bash
# Makes .venv and puts everything into it that the demo and the tests need. Called by make; safe to repeat.
#
#   scripts/bootstrap.sh environment   .venv, torch, trtbuild with its extras, a tritonserver
#   scripts/bootstrap.sh model         the model of the demo
#
# PYTHON names the interpreter, TORCH what pip is to install for torch. What pip says goes to .venv/bootstrap.log.
# Installs nothing outside .venv: where a system package is missing, it says which.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$PWD/.venv
log=$venv/bootstrap.log
default_torch='torch==2.13.0'
candidates=(python3 python3.11 python3.12 python3.13 python3.10)

say() { printf '==> %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$1" >&2; shift; printf 'hint: %s\n' "$@" >&2; exit 1; }

# run "what it is" command...: run it quietly; when it fails show the end of what it said.
run() {
    local what=$1 began=$SECONDS
    shift
    say "$what"
    if ! "$@" >>"$log" 2>&1; then
        tail -n 15 "$log" >&2
        fail "$what: failed" "$(explain)" "the whole output is in $log"
    fi
    if ((SECONDS - began >= 5)); then say "    done in $((SECONDS - began)) s"; fi
}

# Say in a sentence what pip's last words usually mean.
explain() {
    local words
    words=$(tail -n 15 "$log")
    case $words in
        *'Temporary failure in name resolution'* | *NewConnectionError* | *'Connection refused'* | *ProxyError* | *'timed out'*)
            echo 'pip cannot reach its package index; check the network, or point pip at a mirror (pip config)' ;;
        *'No matching distribution'* | *'Could not find a version'*)
            echo 'the index has no file for this Python and machine (x86-64 Linux with glibc 2.35 or later is supported)' ;;
        *'No space left'*) echo 'the disk is full; about 3 GB are needed' ;;
        *externally-managed-environment*) echo 'this pip belongs to the system; remove .venv and run make again' ;;
        *) echo 'run make again once the cause is gone; what is installed already is kept' ;;
    esac
}

# Print the interpreter to use: the one named, else the first suitable on PATH, preferring one that the server can embed.
choose_python() {
    local candidate reason code usable='' objections=()
    [[ -n ${PYTHON:-} ]] && candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        command -v "$candidate" >/dev/null || continue
        code=0
        reason=$("$candidate" scripts/check_python.py 2>/dev/null) || code=$?
        case $code in
            0) base_of "$candidate"; return ;;
            3) usable=${usable:-$candidate}; objections+=("$candidate: $reason") ;;
            2) objections+=("$candidate: $reason") ;;
        esac
    done
    if [[ -n $usable ]]; then
        printf 'warning: %s\n' "${objections[@]}" 'until that is there, tritonserver cannot run Python models' >&2
        base_of "$usable"
        return
    fi
    fail "no suitable Python: 3.10 to 3.13 with venv is needed, looked for ${candidates[*]} on PATH" \
        "${objections[@]}" 'Debian or Ubuntu: apt-get install python3 python3-venv; or name one: make PYTHON=/path/to/python3'
}

# Print the interpreter behind a virtual environment, or the interpreter itself.
base_of() { "$1" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))'; }

# Print what tells one interpreter from another, whatever name it goes by.
identity_of() { "$1" -c 'import os, sys; print("Python", sys.version.split()[0], "of", os.path.realpath(sys.base_prefix))'; }

has_torch() {
    "$1" -c 'import sys, torch; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4))' 2>/dev/null
}

has_gpu() { [[ -e /dev/nvidia0 ]] || nvidia-smi -L >/dev/null 2>&1; }

make_venv() {
    if [[ -x $venv/bin/python ]] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        if [[ -n ${PYTHON:-} && $(identity_of "$venv/bin/python") != "$(identity_of "$PYTHON")" ]]; then
            fail ".venv is $(identity_of "$venv/bin/python"), PYTHON=$PYTHON is $(identity_of "$PYTHON")" 'run: make clean'
        fi
        return
    fi
    local python options=(--clear)
    python=$(choose_python)
    if has_torch "$python"; then
        say "$python has torch, which .venv will share"
        options+=(--system-site-packages)
    fi
    say ".venv from $python"
    "$python" -m venv "${options[@]}" "$venv" || fail "cannot make .venv with $python" 'remove .venv and run make again'
    run 'pip' "$venv/bin/python" -m pip install --upgrade pip
}

install_torch() {
    if [[ -z ${TORCH:-} ]] && has_torch "$venv/bin/python"; then
        return
    fi
    local wanted=()
    read -ra wanted <<<"${TORCH:-$default_torch}"
    has_gpu || "$venv/bin/python" scripts/torch_size.py "${wanted[@]}" >&2
    run "${wanted[*]}" "$venv/bin/python" -m pip install "${wanted[@]}"
}

install_server() {
    local find='from trtbuild.serve.locate import find_server; find_server()'
    local command='from trtbuild.serve.locate import install_command; print(install_command())'
    "$venv/bin/python" -c "$find" 2>/dev/null && return
    run 'tritonserver (150 MB, from the nvidia-pytriton wheel)' bash -c "$("$venv/bin/python" -c "$command")"
}

environment() {
    make_venv
    install_torch
    run 'trtbuild with the extras build, server and dev' "$venv/bin/python" -m pip install --editable '.[build,server,dev]'
    install_server
    say "ready: $("$venv/bin/trtbuild" --version), $("$venv/bin/python" --version) in .venv"
}

model() {
    run "the demo's model (98 MB, SmolLM2-135M-Instruct)" "$venv/bin/python" -c \
        'from trtbuild.demo.fetch import model_file; model_file()'
}

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off
case ${1:-} in
    environment | model) "$1" ;;
    *) fail "usage: scripts/bootstrap.sh environment|model" 'make calls it as needed' ;;
esac
