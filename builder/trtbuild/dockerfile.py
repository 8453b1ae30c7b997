"""What is wrong with a Dockerfile that serves engines: a table of rules over its instructions. Reads text, runs nothing.

The rule that matters most: pip must not bring another TensorRT into an image (field report VC01), since an engine is bound to the exact version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trtbuild.redaction import is_secret

_ROOT = ("root", "0")
_VARIABLE = re.compile(r"\$\{?(\w+)(?::?[-+][^}]*)?\}?")
_INSTALL = re.compile(r"\b(?:pip[\d.]*|uv\s+pip)\b[^&|;]*?\binstall\b(?P<rest>[^&|;]*)")
#: TensorRT and TensorRT-LLM in every spelling of their wheels, with whatever follows the name.
_TENSORRT = re.compile(r"(?i)(tensorrt(?:[-_](?:llm|lean|dispatch|cu\d+|libs|bindings))*)(?:\[[^\]]*\])?(?P<bounds>[=<>!~@].*)?")  # fmt: skip
_EXACT = re.compile(r"={2,3}[\w.+!-]+")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        line: number of its first line.
        name: in capitals, e.g. RUN.
        value: what follows it, on one line.
        stage: number of the stage, from 0; -1 before the first FROM.
    """

    line: int
    name: str
    value: str
    stage: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong.

    Attributes:
        rule: name of the rule.
        line: where; 0 is the file as a whole.
        message: what, with the value seen.
        fix: what to do.
    """

    rule: str
    line: int
    message: str
    fix: str


def parse_dockerfile(text: str) -> list[Instruction]:
    """Return the instructions, with lines that end in a backslash joined and comments left out."""
    found: list[Instruction] = []
    stage, start, parts = -1, 0, [""]
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        start = start or number
        parts.append(line.removesuffix("\\").strip())
        if line.endswith("\\"):
            continue
        name, _, value = " ".join(filter(None, parts)).partition(" ")
        stage += name.upper() == "FROM"
        found.append(Instruction(start, name.upper(), value.strip(), stage))
        start, parts = 0, []
    return found


def check_dockerfile(text: str) -> list[Problem]:
    """Return what the rules of `RULES` find, in the order of lines."""
    instructions = parse_dockerfile(text)
    return sorted(
        (problem for rule in RULES.values() for problem in rule(instructions)), key=lambda problem: problem.line
    )


def _unpinned_tensorrt(instructions: Sequence[Instruction]) -> Iterator[Problem]:
    for each in instructions:
        if each.name != "RUN":
            continue
        command = re.sub(r"[\[\]\",']", " ", each.value) if each.value.startswith("[") else each.value
        for install in _INSTALL.finditer(command):
            for word in install["rest"].replace('"', "").replace("'", "").split():
                match = _TENSORRT.fullmatch(word)
                if match and not _EXACT.fullmatch(match["bounds"] or ""):
                    yield Problem(
                        "tensorrt", each.line, f"pip install {word}: whatever is newest replaces the TensorRT of the image, and no engine loads",
                        f"leave the image's own, or name the exact version: {match[1]}==...",
                    )  # fmt: skip


def _runs_as_root(instructions: Sequence[Instruction]) -> Iterator[Problem]:
    last = max((each.stage for each in instructions), default=-1)
    users = [each for each in instructions if each.name == "USER" and each.stage == last]
    if not users:
        yield Problem("user", 0, "the last stage has no USER, so the server runs as root", "add USER 1000:1000")
    elif users[-1].value.partition(":")[0] in _ROOT:
        yield Problem("user", users[-1].line, f"USER {users[-1].value}: the server runs as root", "USER 1000:1000")


def _has_no_healthcheck(instructions: Sequence[Instruction]) -> Iterator[Problem]:
    last = max((each.stage for each in instructions), default=-1)
    checks = [each for each in instructions if each.name == "HEALTHCHECK" and each.stage == last]
    if not checks or checks[-1].value.upper() == "NONE":
        yield Problem("healthcheck", 0, "the last stage has no HEALTHCHECK", "ask /v2/health/ready")


def _base_is_not_pinned(instructions: Sequence[Instruction]) -> Iterator[Problem]:
    arguments = {}
    stages = set()
    for each in instructions:
        if each.name == "ARG" and each.stage == -1:
            name, _, value = each.value.partition("=")
            arguments[name] = value.strip("\"'")
        if each.name != "FROM":
            continue
        words = [word for word in each.value.split() if not word.startswith("--")]
        image = _VARIABLE.sub(lambda match: arguments.get(match[1], ""), words[0])
        if len(words) == 3 and words[1].upper() == "AS":
            stages.add(words[2])
        tag = image.rpartition("/")[2].partition(":")[2]
        if image not in {*stages, "scratch"} and "@sha256:" not in image and tag in ("", "latest"):
            yield Problem("pinned", each.line, f"FROM {words[0]}: no version is named", "name a tag, or a digest")


def _keeps_secrets(instructions: Sequence[Instruction]) -> Iterator[Problem]:
    for each in instructions:
        if each.name in ("ENV", "ARG"):
            for name, value in re.findall(r"(\w+)=(\S*)", each.value):
                if is_secret(name) and value.strip("\"'"):
                    yield Problem(
                        "secret", each.line, f"{each.name} {name}=... stays in the image", "pass it to the container"
                    )


#: Rule -> function over all instructions.
RULES: dict[str, Callable[[Sequence[Instruction]], Iterator[Problem]]] = {
    "tensorrt": _unpinned_tensorrt,
    "user": _runs_as_root,
    "healthcheck": _has_no_healthcheck,
    "pinned": _base_is_not_pinned,
    "secret": _keeps_secrets,
}
