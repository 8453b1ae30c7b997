"""The page on versions holds the tables that `trtbuild versions` prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trtbuild.trtllm.versions import FEATURES, RELEASES

PAGE = Path(__file__).parents[2] / "docs" / "versions.md"
Cli = Callable[..., tuple[int, str, str]]


def test_the_page_holds_the_tables(cli: Cli) -> None:
    code, out, err = cli("versions", "--markdown")
    assert code == 0, err
    assert PAGE.read_text(encoding="utf-8").endswith(f"\n\n{out}"), "run: trtbuild versions --markdown"


def test_every_release_and_feature_is_in_the_json(cli: Cli) -> None:
    code, out, _ = cli("versions", "--json")
    assert code == 0
    table = json.loads(out)
    assert [row["tensorrt_llm"] for row in table["releases"]] == [release.name for release in RELEASES]
    assert set(table["features"]) == {feature.name.lower() for feature in FEATURES}
    assert {row["evidence"] for row in table["releases"]} == {"known", "inferred"}


def test_every_release_is_in_the_printed_table(cli: Cli) -> None:
    code, out, _ = cli("versions")
    assert code == 0
    assert all(f"({number}) " in out for number in range(1, sum(bool(release.note) for release in RELEASES) + 1))
    assert "1.3.0rc20" in out


@pytest.mark.parametrize(
    ("typed", "release", "tag"),
    [
        ("25.08", "0.21.0", "25.08"),
        ("25.09", "1.0.0", "25.09"),
        ("25.09-trtllm-python-py3", "1.0.0", "25.09"),
        ("nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3", "1.2.1", "26.04"),
        ("1.2", "1.2.1", "26.07"),
        ("v1.1.0", "1.1.0", "26.02"),
    ],
)
def test_one_row_is_found_by_release_tag_or_image_and_names_what_to_pull(
    cli: Cli, typed: str, release: str, tag: str
) -> None:
    image = f"nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3"
    code, out, _ = cli("versions", typed, "--json")
    row = json.loads(out)
    assert (code, row["tensorrt_llm"], row["image"]) == (0, release, image)
    code, out, _ = cli("versions", typed)
    assert (code, f"docker pull {image}\n" in out) == (0, True)


def test_a_release_without_a_container_says_so(cli: Cli) -> None:
    code, out, _ = cli("versions", "1.4.0rc4")
    assert (code, "no container is known to carry it" in out) == (0, True)


@pytest.mark.parametrize("typed", ["26.08", "24.12", "24.12-trtllm-python-py3", "0.16.0", "latest"])
def test_what_is_not_in_the_table_is_a_usage_error_that_names_what_is(cli: Cli, typed: str) -> None:
    code, _, err = cli("versions", typed)
    assert code == 2
    assert "25.01 to 26.07" in err or "1.2.1" in err
