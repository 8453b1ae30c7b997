"""`trtbuild versions`: which release of TensorRT-LLM comes with what."""

from __future__ import annotations

from typing import Any

import click

from trtbuild.cli.options import common, json_output


@click.command(epilog="Example: trtbuild versions 25.08")
@click.argument("release", required=False)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the tables in Markdown, as in the documentation.")
@json_output
@common
def versions(release: str | None, as_markdown: bool, as_json: bool, quiet: bool) -> None:
    """Print which container carries which TensorRT-LLM, TensorRT, CUDA and driver; RELEASE, such as 1.2, 1.2.1 or the tag 25.08, shows one.

    Every row says whether it was read in NVIDIA's documents (known) or concluded from its neighbours (inferred).
    """
    from trtbuild.console import print_json
    from trtbuild.trtllm import versions_table as table

    if release is not None:
        row, container = table.find_row(release)
        found = table.describe(row, container)
        print_json(found) if as_json else _print_row(found)
    elif as_json:
        print_json(table.data())
    elif as_markdown:
        click.echo(table.markdown(), nl=False)
    else:
        from trtbuild.cli.ruled import print_table

        cells, notes = table.rows()
        print_table(table.HEADER, cells)
        for number, note in enumerate(notes, start=1):
            click.echo(f"({number}) {note}")
        print_table(table.FEATURE_HEADER, table.feature_rows())


def _print_row(found: dict[str, Any]) -> None:
    from trtbuild.trtllm.versions import Feature

    boxes = [f"{box['tag']} (Triton {box['server']}, driver {box['driver']} or newer)" for box in found["containers"]]
    lines = {
        "TensorRT-LLM": found["tensorrt_llm"],
        "pull": f"docker pull {found['image']}" if found["image"] else "no container is known to carry it",
        "containers": "; ".join(boxes) or "none known",
        "TensorRT": found["tensorrt"]
        or ("not known" if "engine" in found["features"] else "none: this release builds no engines"),
        "CUDA": found["cuda"] or "not known",
        "driver": f"{found['driver']} or newer" if found["driver"] else "not known",
        "Python": found["python"],
        "ModelOpt": found["modelopt"] or "not known",
        "transformers": found["transformers"] or "not known",
        "features": "; ".join(Feature[name.upper()].value for name in found["features"]),
        "evidence": found["evidence"],
        **({"note": found["note"]} if found["note"] else {}),
    }
    for name, value in lines.items():
        click.echo(f"{name:<14}{value}")
