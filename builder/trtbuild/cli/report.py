"""How plans and results look: tables for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from trtbuild.cli.ruled import print_table, ruled
from trtbuild.console import print_json, print_text, stdout_console
from trtbuild.names import LAYOUTS

if TYPE_CHECKING:
    from trtbuild.convert.kept import KeptFolder


def print_conversion_plan(plan: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a conversion plan (`unified_plan.describe`)."""
    if as_json:
        print_json(plan)
        return
    click.echo(f"{click.style(plan['architecture'], bold=True)} {plan['source']}")
    work = (
        f"copies {size(plan['write_bytes'])}"
        if plan.get("is_copy")
        else f"reads {size(plan['read_bytes'])}, writes {size(plan['write_bytes'])}"
    )
    print_text(
        f"{plan['quantization']}, {plan['dtype']}, KV cache {plan['kv_cache']}; {work}"
        + (", calibrates first" if plan["calibration_needed"] else "")
    )
    if "ranks" in plan:
        click.echo(ruled(("rank", "tp", "pp", "layers", "tensors", "size"), list(map(_rank_row, plan["ranks"]))))
    unified = plan.get("unified", plan)
    if "files" in unified:
        files = [(file["file"], str(file["num_tensors"]), size(file["bytes"])) for file in unified["files"]]
        click.echo(ruled(("file", "tensors", "size"), files))
    for warning in plan["warnings"]:
        print_text(f"note: {warning}")


def _rank_row(rank: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = (str(rank[key]) for key in ("rank", "tp_rank", "pp_rank"))
    return (*numbers, "-".join(map(str, rank["layers"])), str(rank["num_tensors"]), size(rank["bytes"]))


def print_conversion(manifests: Mapping[str, Mapping[str, Any]], *, as_json: bool) -> None:
    """Print what was converted: folder -> manifest."""
    if as_json:
        keys = (
            "target",
            "read_bytes",
            "write_bytes",
            "calibration",
            "kv_scales",
            "seconds",
            "peak_rss_bytes",
            "warnings",
        )
        print_json(
            [{"output": folder, **{key: manifest[key] for key in keys}} for folder, manifest in manifests.items()]
        )
        return
    for folder, manifest in manifests.items():
        files = len(manifest["sha256"])
        kind = "weight" if LAYOUTS[manifest["target"]] == "unified" else "rank"
        print_text(f"{folder}: {files} {kind} file{'s' * (files > 1)}, {size(manifest['write_bytes'])}")


def size(count: int) -> str:
    """Return a byte count with a binary unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def print_verification(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the report of `verify_folder`."""
    if as_json:
        print_json(report)
        return
    from rich.text import Text

    console = stdout_console()
    for finding in report["findings"]:
        tensor = f" {finding['tensor']}" if finding["tensor"] else ""
        said = Text.assemble((finding["file"], "red"), f"{tensor}: {finding['problem']}")
        console.print(said, soft_wrap=True)
    if report.get("worst"):
        rows = [
            (row["tensor"], str(row["pp_rank"]), f"{row['max_error']:.3g}", f"{row['relative']:.3g}")
            for row in report["worst"]
        ]
        columns = ("tensor", "stage", "largest error", "relative error")
        print_table(columns, rows, align="<>>>", title="furthest from the source")
    compared = (
        f", {report['exact']} of {report['compared']} weights equal to the source" if "compared" in report else ""
    )
    found = len(report["findings"])
    verdict = f"{found} problem{'s' * (found > 1)}" if found else "as written"
    console.print(
        f"{report['folder']}: {verdict}: {report['tensors']} tensors, {size(report['bytes'])}{compared}", soft_wrap=True
    )


def print_copy_plan(kept: KeptFolder, *, as_json: bool) -> None:
    """Print what a copy of a quantized folder will be."""
    found = kept.found
    plan = {
        "source": str(kept.raw.path),
        "method": found.method,
        "algorithm": found.algorithm,
        "bytes": kept.raw.nbytes,
        "files": [file.name for file in kept.raw.files],
        "warnings": list(kept.notes),
    }
    if as_json:
        print_json(plan)
        return
    print_text(f"{plan['source']}: {found.method}, {found.algorithm}: copies {size(kept.raw.nbytes)}")
    for note in kept.notes:
        print_text(f"note: {note}")
