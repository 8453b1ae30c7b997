"""Releases of TensorRT-LLM: order, look-up, features; the table agrees with NVIDIA's compatibility matrix."""

from __future__ import annotations

import re

import pytest

from trtbuild.errors import UsageError
from trtbuild.trtllm.versions import DEFAULT, FEATURES, RELEASES, Feature, Version, find_release, release_of_tag


def _version(text: str) -> Version:
    version = Version.parse(text)
    assert version is not None
    return version


def test_releases_are_ordered_as_they_came_out() -> None:
    written = ["0.17.0", "0.17.0.post1", "0.18.0", "1.0.0", "1.2.0rc8", "1.2.0", "1.3.0rc20", "1.3.0rc21", "1.3.0"]
    assert sorted(map(_version, reversed(written))) == list(map(_version, written))
    assert [release.version for release in RELEASES] == sorted(release.version for release in RELEASES)


@pytest.mark.parametrize(
    ("typed", "found"),
    [("1.2.1", "1.2.1"), ("v1.0.0", "1.0.0"), ("1.2", "1.2.1"), ("0.17", "0.17.0.post1"), (" 0.20.0 ", "0.20.0")],
)
def test_a_release_is_found_by_what_users_type(typed: str, found: str) -> None:
    assert find_release(typed).name == found


def test_a_patch_that_is_not_listed_is_taken_for_its_neighbour_and_marked() -> None:
    release = find_release("1.2.7")
    assert (release.evidence, release.tensorrt, release.containers) == ("inferred", find_release("1.2.1").tensorrt, ())
    assert "1.2.1" in release.note


@pytest.mark.parametrize("typed", ["0.16.0", "0.9", "2.0", "1.9.9", "latest", ""])
def test_what_is_not_known_is_refused_with_what_is(typed: str) -> None:
    with pytest.raises(UsageError) as error:
        find_release(typed)
    assert "1.2.1" in str(error.value.hint)


@pytest.mark.parametrize(
    ("name", "engine", "llm_api"),
    [("0.17.0", True, False), ("0.21.0", True, False), ("1.0.0", True, True), ("1.2.1", True, True),
     ("1.3.0rc20", True, True), ("1.3.0rc21", False, True), ("1.4.0rc4", False, True)],
)  # fmt: skip
def test_engines_end_with_1_3_0rc20_and_the_llm_api_begins_with_1_0(name: str, engine: bool, llm_api: bool) -> None:
    release = find_release(name)
    assert (release.has(Feature.ENGINE), release.has(Feature.LLM_API)) == (engine, llm_api)


def test_every_feature_says_how_it_is_known() -> None:
    assert set(FEATURES) == set(Feature)
    assert all(span.source for span in FEATURES.values())


def test_no_release_has_options_of_a_program_that_it_lacks() -> None:
    for release in RELEASES:
        for feature in filter(release.has, Feature):
            assert release.has(Feature.ENGINE) or "trtllm-build" not in feature.value, (release.name, feature)
            assert release.has(Feature.LLM_API) or not re.search("trtllm-serve|LLM API", feature.value), (
                release.name,
                feature,
            )


def test_the_default_can_both() -> None:
    release = find_release(DEFAULT)
    assert release.has(Feature.ENGINE)
    assert release.has(Feature.LLM_API)
    assert release.container is not None


@pytest.mark.parametrize(
    ("tag", "name"),
    [("25.01", "0.17.0"), ("25.08", "0.21.0"), ("25.12", "1.1.0"), ("26.03", "1.2.0"), ("26.07", "1.2.1")],
)
def test_containers_carry_what_the_matrix_says(tag: str, name: str) -> None:
    release = release_of_tag(tag)
    assert release is not None
    assert release.name == name


#: Tag, Triton, TensorRT-LLM, TensorRT, CUDA, oldest driver: server repository, docs/introduction/compatibility.md.
_MATRIX = """\
26.07 2.71.0 1.2.1 10.14.1.48 13.1.0.036 590.44.01
26.06 2.70.0 1.2.1 10.14.1.48 13.1 590.44
26.05 2.69.0 1.2.1 10.14.1.48 13.1 590.44
26.04 2.68.0 1.2.1 10.14.1.48 13.1 590.44
26.03 2.67.0 1.2.0 10.14.1.48 13.1 590.44
26.02 2.66.0 1.1.0 10.13.3.9 13.0.2.006 580.95.05
26.01 2.65.0 1.1.0 10.13.3.9 13.0.2 580.95.05
25.12 2.64.0 1.1.0 10.13.3.9 13.0.2 580.95.05
25.11 2.63.0 1.0.3 10.13.3.9 13.0.2 580.95.05
25.10 2.62.0 1.0.0 10.11.0.33 12.9.1.010 575.57.08
25.09 2.61.0 1.0.0 10.11.0.33 12.9.1 575.57
25.08 2.60.0 0.21.0 10.11.0.33 12.9.0.043 575.51.03
25.07 2.59.1 0.20.0 10.10.0.31 12.9.0.036 575.51
25.06 2.59.0 0.20.0 10.10.0.31 12.9.0 575.51
25.05 2.58.0 0.19.0 10.9.0.34 12.8.1.012 570.124.06
25.04 2.57.0 0.18.2 10.9.0.34 12.8.1 570.124
25.03 2.56.0 0.18.0 10.9 12.8.1 570.124
25.02 2.55.0 0.17.0.post1 10.8.0.43 12.8.0.038 570.86.10
25.01 2.54.0 0.17.0 10.8.0.43 12.8.0 570.86.10
""".splitlines()


@pytest.mark.parametrize("line", _MATRIX, ids=lambda line: line.partition(" ")[0])
def test_every_row_of_the_compatibility_matrix_is_in_the_table(line: str) -> None:
    tag, server, name, tensorrt, cuda, driver = line.split()
    release = release_of_tag(tag)
    assert release is not None
    box = next(box for box in release.containers if box.tag == tag)
    assert (release.name, release.tensorrt, box.server, box.driver) == (name, tensorrt, server, driver)
    assert release.cuda.startswith(cuda)  # the matrix writes the build number in some rows of a release only


def test_the_table_has_no_container_beyond_the_matrix() -> None:
    assert [box.tag for release in RELEASES for box in release.containers] == [
        line.partition(" ")[0] for line in reversed(_MATRIX)
    ]


def test_a_candidate_after_the_removal_of_engines_is_not_given_its_neighbour_s_tensorrt() -> None:
    assert (find_release("1.3.0rc22").tensorrt, find_release("1.3.0rc19").tensorrt) == ("", "10.14.1.48")
