"""Safe changes: what they are, that nothing else changes, and that files are replaced whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.errors import TrtbuildError
from trtbuild.repo.lint import check, pbtext
from trtbuild.repo.lint.findings import Edit
from trtbuild.repo.lint.fix import apply, plan, write
from trtbuild.repo.proto import parse_config
from trtbuild.trtllm.versions import find_release

Cli = Callable[..., tuple[int, str, str]]

CORE = """# mine: ${keep} this
name: "core"
backend: "tensorrtllm"   # the C++ one
max_batch_size: 4
input { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] optional: true allow_ragged_batch: true }
input [ { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [] } },
        { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [] } } ]
output { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] }
output { name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }
instance_group [ { count: 0 kind: KIND_CPU } ]
parameters { key: "gpt_model_type" value { string_value: "inflight_batching" } }
parameters { key: "gpt_model_path" value { string_value: "/" } }
parameters: { key: 'max_beam_width'
  value: { string_value: '${beams}' } }  # two lines
parameters { key: "worker_path" value { string_value: "/w" } }
parameters { key: "enable_trt_overlap" value { string_value: "true" } } parameters { key: "num_nodes" value { string_value: "" } }
parameters { key: "tokenizer_dir" value { string_value: "${tokenizer_dir}" } }
parameters { key: "guided_decoding_backend" value { string_value: "" } }
parameters { key: "guided_decoding_backend" value { string_value: "" } }
"""
FIXED = """# mine: ${keep} this
name: "model"
backend: "tensorrtllm"   # the C++ one
max_batch_size: 4
input { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] optional: true allow_ragged_batch: true }
input [ { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [] } },
        { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [] } } ]
output { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] }
output { name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "gpt_model_type" value { string_value: "inflight_batching" } }
parameters { key: "gpt_model_path" value { string_value: "/" } }
  # two lines
parameters { key: "executor_worker_path" value { string_value: "/w" } }
\x20
parameters { key: "tokenizer_dir" value { string_value: "" } }
parameters { key: "guided_decoding_backend" value { string_value: "" } }
parameters { key: "xgrammar_tokenizer_info_path" value { string_value: "" } }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository of one model with every mistake that can be mended."""
    folder = tmp_path / "repository"
    (folder / "model" / "1").mkdir(parents=True)
    (folder / "model" / "config.pbtxt").write_text(CORE)
    return folder


def mend(repository: Path) -> None:
    write(repository, plan(repository, check(repository, release=find_release("1.2.1")).findings))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_is_mended_changes_and_everything_else_stays_byte_for_byte(repository: Path, newline: str) -> None:
    file = repository / "model" / "config.pbtxt"
    file.write_bytes(CORE.replace("\n", newline).encode())
    file.chmod(0o640)
    mend(repository)
    assert file.read_bytes().decode() == FIXED.replace("\n", newline)
    assert file.stat().st_mode & 0o777 == 0o640
    assert [child.name for child in file.parent.iterdir() if child.name != "1"] == ["config.pbtxt"]


def test_nothing_that_can_be_mended_is_left(repository: Path) -> None:
    mend(repository)
    left = check(repository, release=find_release("1.2.1")).findings
    assert [finding for finding in left if finding.edit is not None] == []
    assert plan(repository, left) == []


def test_a_dry_run_shows_a_diff_and_writes_nothing(repository: Path, cli: Cli) -> None:
    code, out, _ = cli("lint", repository, "--fix", "--dry-run", "--tensorrt-llm", "1.2.1")
    assert code == 3
    assert out.startswith("--- a/model/config.pbtxt\n+++ b/model/config.pbtxt\n@@")
    assert '-name: "core"\n+name: "model"\n' in out
    assert (repository / "model" / "config.pbtxt").read_text() == CORE


def test_fix_reports_what_is_left_and_what_it_did(repository: Path, cli: Cli) -> None:
    code, out, err = cli("lint", repository, "--fix", "--tensorrt-llm", "1.2.1", "--select", "*-parameter,name-differs,unfilled")  # fmt: skip
    assert (code, out) == (0, ""), out
    assert "fixed model/config.pbtxt: " in err
    assert "rename 'worker_path' to 'executor_worker_path'" in err


def test_a_byte_order_mark_is_removed(repository: Path) -> None:
    file = repository / "model" / "config.pbtxt"
    text = b'name: "model"\nbackend: "tensorrtllm"\n'
    file.write_bytes(b"\xef\xbb\xbf" + text)
    mend(repository)
    assert file.read_bytes() == text


def test_what_an_ensemble_cannot_have_is_removed(tmp_path: Path) -> None:
    text = 'platform: "ensemble"\nensemble_scheduling { }\ninstance_group [\n  { count: 1 }\n]\nmodel_transaction_policy {\n decoupled: true\n}\n'
    (tmp_path / "chain" / "1").mkdir(parents=True)
    (tmp_path / "chain" / "config.pbtxt").write_text(text)
    mend(tmp_path)
    assert (tmp_path / "chain" / "config.pbtxt").read_text() == 'platform: "ensemble"\nensemble_scheduling { }\n'


def test_a_file_that_changed_in_between_is_left_alone(repository: Path) -> None:
    fixed = plan(repository, check(repository).findings)
    file = repository / "model" / "config.pbtxt"
    file.write_text("# somebody was faster\n")
    with pytest.raises(TrtbuildError, match="changed while it was checked"):
        write(repository, fixed)
    assert file.read_text() == "# somebody was faster\n"


def test_a_repository_that_cannot_be_mended_is_not_touched(repository: Path) -> None:
    shutil.copy(repository / "model" / "config.pbtxt", repository / "model" / "before")
    (repository / "model" / "config.pbtxt").write_text('name: "model"\nbackend: "python"\n')
    before = (repository / "model" / "config.pbtxt").stat().st_mtime_ns
    mend(repository)
    assert (repository / "model" / "config.pbtxt").stat().st_mtime_ns == before


@given(st.text(alphabet=st.sampled_from("ab\"'{}[]<>:,;#$\\ \n"), max_size=60))
def test_any_text_can_be_looked_through(text: str) -> None:
    root = pbtext.parse(text)
    assert root.value == (0, len(text))
    assert len(pbtext.without_comments(text)) == len(text)


def test_places_in_a_text_are_those_of_the_values_that_protobuf_reads() -> None:
    message, root = parse_config(CORE.replace("${", "").replace("core", "model")), pbtext.parse(CORE)
    text = CORE
    assert [node.first("name").text(text) for node in root.all("input")] == [each.name for each in message.input]  # type: ignore[union-attr] # all have one
    assert len(list(root.all("parameters"))) == 9
    assert [node.alone for node in root.all("input")] == [True, False, False]
    beam = next(node for node in root.all("parameters") if node.first("key").text(text) == "max_beam_width")  # type: ignore[union-attr] # all have one
    assert pbtext.line_of(text, beam.start) == 13


def test_edits_at_one_place_keep_their_order() -> None:
    assert apply("ab", [Edit(2, 2, "1", ""), Edit(0, 1, "x", ""), Edit(2, 2, "2", "")]) == "xb12"
