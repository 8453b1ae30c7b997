"""Releases of TensorRT-LLM: order, look-up, features; the table agrees with NVIDIA's compatibility matrix."""

from __future__ import annotations

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
