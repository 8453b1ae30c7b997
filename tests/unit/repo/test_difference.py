"""`trtbuild diff`: what differs between two repositories by meaning, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from trtbuild.errors import TrtbuildError
from trtbuild.repo.difference import Difference, compare

Cli = Callable[..., tuple[int, str, str]]

CORE = """
name: "core"
backend: "python"
max_batch_size: 4
input [{ name: "IDS" data_type: TYPE_INT32 dims: [-1, 8] }, { name: "LENGTH" data_type: TYPE_INT32 dims: [1] optional: true }]
output [{ name: "OUT" data_type: TYPE_INT32 dims: [-1] }]
instance_group [{ kind: KIND_CPU count: 1 }]
dynamic_batching { max_queue_delay_microseconds: 100 }
parameters { key: "words" value: { string_value: "[1, 2]" } }
parameters { key: "path" value: { string_value: "/models/a" } }
"""
#: The same, written differently: other order, layout and comments, the name left to the folder, defaults spelled out.
CORE_AGAIN = """
# a comment
parameters: { key: "path", value: { string_value: '/models/a' } }
parameters { key: "words" value: { string_value: "[1,2]" } }
output { name: "OUT" dims: -1 data_type: TYPE_INT32 is_shape_tensor: false }
input { name: "LENGTH" optional: true data_type: TYPE_INT32 dims: 1 }
input { dims: -1 dims: 8 name: "IDS" data_type: TYPE_INT32 }
dynamic_batching { max_queue_delay_microseconds: 100 preserve_ordering: false }
instance_group { count: 1 kind: KIND_CPU }
max_batch_size: 4 backend: "python"
"""
ENSEMBLE = """
platform: "ensemble"
ensemble_scheduling { step [
  { model_name: "core" model_version: -1 input_map { key: "IDS" value: "ids" } output_map { key: "OUT" value: "x" } },
  { model_name: "post" model_version: -1 input_map { key: "IN" value: "x" } output_map { key: "TEXT" value: "text" } }
] }
"""
ENSEMBLE_AGAIN = """
ensemble_scheduling { step { model_version: -1 model_name: "post" output_map { key: "TEXT" value: "text" } input_map { key: "IN" value: "x" } }
step { output_map { key: "OUT" value: "x" } input_map { key: "IDS" value: "ids" } model_version: -1 model_name: "core" } }
platform: "ensemble"
"""


def write(folder: Path, core: str = CORE, ensemble: str = ENSEMBLE) -> Path:
    """Write a repository of two models."""
    for name, text in (("core", core), ("ensemble", ensemble)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(text, encoding="utf-8")
    (folder / "core" / "1" / "model.py").write_text("a = 1\n", encoding="utf-8")
    (folder / "core" / "1" / "model.yaml").write_text("a: 1\nb: [1, 2]\n", encoding="utf-8")
    return folder


def test_order_formatting_comments_and_defaults_do_not_count(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b", CORE_AGAIN, ENSEMBLE_AGAIN)
    (b / "core" / "1" / "model.yaml").write_text("# again\nb:\n- 1\n- 2\na: 1\n", encoding="utf-8")
    (b / "core" / "1" / "__pycache__").mkdir()
    (b / "core" / "1" / "__pycache__" / "model.cpython-311.pyc").write_bytes(b"x")
    (b / "ensemble" / "1" / ".keep").touch()
    assert compare(a, b) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("dims: [-1, 8]", "dims: [8, -1]", ("tensors", "input.IDS.dims", '["-1", "8"]', '["8", "-1"]')),
        ("dims: [1] optional: true", "dims: [1]", ("tensors", "input.LENGTH.optional", "true", None)),
        ("max_batch_size: 4", "max_batch_size: 8", ("scheduling", "max_batch_size", "4", "8")),
        ("count: 1", "count: 2", ("scheduling", "instance_group.KIND_CPU.count", "1", "2")),
        (
            "microseconds: 100",
            "microseconds: 7",
            ("scheduling", "dynamic_batching.max_queue_delay_microseconds", "100", "7"),
        ),
        ("/models/a", "/models/b", ("parameters", "parameters.path", "/models/a", "/models/b")),
        ("[1, 2]", "[2, 1]", ("parameters", "parameters.words", "[1, 2]", "[2, 1]")),
        ('"python"', '"other"', ("settings", "backend", "python", "other")),
    ],
)
def test_a_value_of_a_configuration_is_named_with_both_sides(
    tmp_path: Path, old: str, new: str, expected: tuple[str, str, str | None, str | None]
) -> None:
    assert CORE.count(old) == 1
    a, b = write(tmp_path / "a"), write(tmp_path / "b", CORE.replace(old, new))
    assert compare(a, b) == [Difference("core", *expected)]


def test_wiring_of_an_ensemble_is_compared_by_step(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b", ensemble=ENSEMBLE_AGAIN.replace('"ids"', '"prompt"'))
    (found,) = compare(a, b)
    assert (found.aspect, found.a, found.b) == ("ensemble", "ids", "prompt")
    assert found.what == "ensemble_scheduling.step.core.input_map.IDS"


def test_files_versions_and_models_are_compared(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b")
    (b / "core" / "1" / "model.py").write_text("a = 2\n", encoding="utf-8")
    (b / "core" / "2").mkdir()
    (b / "core" / "labels.txt").write_text("x", encoding="utf-8")
    shutil.rmtree(b / "ensemble")
    found = {(each.model, each.aspect, each.what): (each.a, each.b) for each in compare(a, b)}
    assert found.pop(("ensemble", "model", "the whole model")) == ("there", None)
    assert found.pop(("core", "files", "version 2")) == (None, "there")
    before, after = found.pop(("core", "files", "1/model.py"))
    assert before and after and before != after
    assert found.pop(("core", "files", "labels.txt"))[0] is None
    assert not found


def test_a_configuration_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b", core="max_batch_size: x")
    with pytest.raises(TrtbuildError, match=r"core/config\.pbtxt: 1:17"):
        compare(a, b)


def test_exit_codes_are_0_for_the_same_and_3_for_different(tmp_path: Path, cli: Cli) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b", CORE_AGAIN, ENSEMBLE_AGAIN)
    assert cli("diff", a, b)[:2] == (0, f"{a} and {b} are the same\n")
    (b / "core" / "1" / "model.py").write_text("a = 2\n", encoding="utf-8")
    code, out, err = cli("diff", a, b)
    assert (code, "1/model.py" in out, "differ in 1 place" in err) == (3, True, True)
    code, out, _ = cli("diff", a, b, "--json")
    told = json.loads(out)
    assert (code, told["same"], len(told["differences"])) == (3, False, 1)
    assert cli("diff", a, tmp_path / "nowhere")[0] == 1


def test_a_link_that_leads_nowhere_is_a_difference(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b")
    for name in ("dangling", "core/9", "core/1/data"):
        (b / name).symlink_to("/nowhere/at/all")
    dead = "a link that leads nowhere"
    assert compare(a, b) == [
        Difference("dangling", "files", "dangling", None, dead),
        Difference("core", "files", "1/data", None, dead),
        Difference("core", "files", "9", None, dead),
    ]
    assert compare(b, b) == []
