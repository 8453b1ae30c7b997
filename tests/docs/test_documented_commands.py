"""Every `trtbuild ...` line of README and docs names an existing verb and existing options; every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from trtbuild.cli.group import VERBS
from trtbuild.cli.group import cli as group

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("model_repo_templates/*.md")])


def commands() -> list[tuple[str, str]]:
    """Return (page, command line) for every line of a code block that starts with trtbuild, and every inline `trtbuild ...`."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.S | re.M)
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
        for line in lines + inline:
            stripped = line.strip().removeprefix("$ ").partition("   #")[0]
            if stripped.startswith("trtbuild ") and not stripped.startswith(
                ("trtbuild <", "trtbuild ...", "trtbuild …")
            ):
                found.append((page.name, stripped))
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_documented_commands_exist(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    if words[0].startswith("-"):
        assert words[0] in ("--help", "--version")
        return
    assert words[0] in VERBS, f"{page}: {line}"
    command = group.get_command(click.Context(group), words[0])
    assert command is not None
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help",
        "-h",
    }
    for word in words[1:]:
        if word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?|-", word):
            assert word.partition("=")[0] in known, f"{page}: {line}: {word}"


def test_there_are_documented_commands() -> None:
    assert len(commands()) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_paths_in_the_readme_table_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme[readme.index("## Where does X live") : readme.index("## Honest limits")]
    for path in re.findall(r"`((?:builder|client|model_repo_templates|docs|quant)/[^`]*)`", table):
        if "<" not in path and path != "quant/calibrate/":
            assert (ROOT / path).exists(), path
