"""`trtbuild migrate`: from engines to the LLM API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtbuild.cli.options import common, force, json_output
from trtbuild.cli.ruled import print_table
from trtbuild.console import print_json, print_text

if TYPE_CHECKING:
    from trtbuild.migrate.run import Migration

_PATH = click.Path(path_type=Path)
_TITLES = {
    "taken": "taken over",
    "dropped": "no equivalent",
    "decide": "to decide",
}


@click.command(epilog="Example: trtbuild migrate ./triton_model_repo --model ./Llama-3.1-8B -o trtbuild.yaml")
@click.argument("source", type=_PATH)
@click.option("-o", "--output", type=_PATH, default="trtbuild.yaml", show_default=True, help="trtbuild.yaml to write.")
@click.option("--llm-api", type=_PATH, metavar="FILE", help="Also write the YAML file for trtllm-serve.")
@click.option("--model", type=_PATH, help="Hugging Face folder; default: what SOURCE says.")
@click.option("--engine", type=_PATH, help="Engine folder, where SOURCE names a path of another machine.")
@click.option(
    "--tensorrt-llm", "release", metavar="VERSION", help="Release that will serve; default: SOURCE's, or 1.2.1."
)
@click.option(
    "--gpu", metavar="NAME", help="GPU that will serve, e.g. h100; formats that do not run there are replaced."
)
@force
@json_output
@common
def migrate(
    source: Path,
    output: Path,
    llm_api: Path | None,
    model: Path | None,
    engine: Path | None,
    release: str | None,
    gpu: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make a trtbuild.yaml for target pytorch of SOURCE: a trtbuild.yaml, a build folder, or a model repository with engines.

    Prints what was taken over, what has no equivalent, and what needs a decision.
    """
    from trtbuild.migrate.run import migrate as run
    from trtbuild.migrate.run import write

    migration = run(source, model=model, engine=engine, release=release, gpu=gpu)
    write(migration, output, llm_api=llm_api, force=force)
    if as_json:
        print_json({"output": str(output), "llm_api": str(llm_api) if llm_api else None, **migration.as_json()})
        return
    _print_rows(migration)
    print_text(f"{output}: target pytorch, TensorRT-LLM {migration.release}; next: trtbuild plan {output}")


def _print_rows(migration: Migration) -> None:
    for verdict, title in _TITLES.items():
        rows = [row for row in migration.rows if row.verdict == verdict]
        if not rows:
            continue
        columns = {
            "was": [row.old for row in rows],
            "value": [str(row.value) for row in rows],
            "becomes": [row.new for row in rows],
            "new value": ["" if row.new_value is None else str(row.new_value) for row in rows],
            "note": [row.note for row in rows],
        }
        shown = {name: cells for name, cells in columns.items() if any(cells)}
        print_table(list(shown), list(zip(*shown.values(), strict=True)), title=f"{title} ({len(rows)})")
