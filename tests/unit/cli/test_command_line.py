"""The command line as a whole: help is fast and light, every verb has an example, exit codes are as stated."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from trtbuild import __version__
from trtbuild.cli.group import VERBS
from trtbuild.cli.group import cli as group
from trtbuild.cli.ruled import ruled
from trtbuild.errors import CheckFailed, TrtbuildError, UsageError

Cli = Callable[..., tuple[int, str, str]]
HEAVY = ("torch", "numpy", "transformers", "tritonclient", "pydantic", "rich", "grpc", "yaml")


def modules_after(*arguments: str) -> set[str]:
    code = (
        "import sys\nfrom trtbuild.cli.edge import run\n"
        f"code = run({list(arguments)!r})\n"
        "sys.stderr.write('\\n'.join(sys.modules))\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_imports_nothing_heavy() -> None:
    assert not modules_after("--help") & set(HEAVY)
    assert not modules_after("--version") & set(HEAVY)


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_imports_neither_torch_nor_numpy(verb: str) -> None:
    assert not modules_after(verb, "--help") & {"torch", "numpy", "transformers"}


def test_planning_imports_only_what_it_uses(make_model: Callable[..., Path]) -> None:
    unused = {"trtbuild.hardware", "trtbuild.quant.stats", "trtbuild.quant.sources.result", "trtbuild.yaml_text"}
    assert not modules_after("plan", str(make_model())) & (unused | set(HEAVY))


@pytest.mark.parametrize("cells", [[("0", "34.32 GiB")], [("0", "1 B"), ("12345678", "2.00 TiB")]])
def test_tables_look_as_those_of_rich(cells: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in ("rank", "size"):
        table.add_column(column, justify="right")
    for row in cells:
        table.add_row(*row)
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    assert click.unstyle(ruled(("rank", "size"), cells)) + "\n" == console.file.getvalue()


@pytest.mark.parametrize("verb", ["render", "lint"])
def test_rendering_and_linting_need_neither_torch_nor_numpy(verb: str) -> None:
    assert not modules_after(verb, "--help") & {"torch", "numpy", "transformers", "grpc"}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example_and_the_common_options(verb: str, cli: Cli) -> None:
    code, out, _ = cli(verb, "--help")
    assert code == 0
    assert "Example: trtbuild " + verb in " ".join(out.split())
    assert "--quiet" in out
    command = group.get_command(click.Context(group), verb)
    assert isinstance(command, click.Command)
    assert command.name == verb


@pytest.mark.parametrize(
    "verb",
    [
        "init",
        "plan",
        "convert",
        "verify",
        "evaluate",
        "build",
        "lora",
        "architectures",
        "render",
        "lint",
        "diff",
        "serve",
        "reload",
        "generate",
        "probe",
        "demo",
        "doctor",
        "versions",
    ],
)
def test_verbs_with_a_result_offer_it_as_json(verb: str, cli: Cli) -> None:
    assert "--json" in cli(verb, "--help")[1]


def test_version_and_unknown_verbs(cli: Cli) -> None:
    assert cli("--version")[:2] == (0, f"trtbuild {__version__}\n")
    code, _, err = cli("serv")
    assert (code, "Did you mean 'serve'?" in err) == (2, True)
    assert cli("plan")[0] == 2
    assert cli()[0] in (0, 2)


def test_the_schema_is_a_json_schema_that_knows_every_section(cli: Cli) -> None:
    import jsonschema

    code, out, _ = cli("schema")
    assert code == 0
    schema = json.loads(out)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"model": {"path": "x"}, "parallel": {"tp_size": 2}})
    assert not validator.is_valid({"model": {"path": "x"}, "paralel": {}})


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TrtbuildError("a", hint="b"), 1),
        (UsageError("a", hint="b"), 2),
        (CheckFailed("a", hint="b"), 3),
        (KeyboardInterrupt(), 130),
        (ValueError("a"), 1),
    ],
)
def test_errors_become_exit_codes_without_a_traceback(
    error: BaseException, code: int, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise error

    command = group.get_command(click.Context(group), "schema")
    assert command is not None
    monkeypatch.setattr(command, "callback", fail)
    found, out, err = cli("schema")
    assert (found, out) == (code, "")
    assert "Traceback" not in err
    if isinstance(error, TrtbuildError):
        assert err == "error: a\nhint: b\n"


def test_python_m_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "trtbuild", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"trtbuild {__version__}\n"


def test_help_is_quick() -> None:
    """Not a benchmark: processor time, the best of five, with room for a slow machine."""
    import resource

    best = 1e9
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "trtbuild", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert best < 0.5
