"""manifest.json is looked at once, whole: what is read later is there and of its type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trtbuild import manifest
from trtbuild.manifest_form import FORMS, Each, Form, faults

WRITTEN: dict[str, dict[str, Any]] = {
    "build": {"stages": {"engine": {"key": "k", "outputs": ["engine"]}}},
    "checkpoint": {
        "target": "tensorrt", "inputs_key": "k", "source": {"path": "model"}, "deployment": {"model": {}}, "sha256": {"file": {"tensor": "digest"}},
        "files": {"file": {"bytes": 1}}, "read_bytes": 1, "write_bytes": 1, "calibration": None, "kv_scales": [], "warnings": [], "seconds": {},
        "peak_rss_bytes": 1,
    },
    "engine": {"files": {"rank0.engine": {"bytes": 1}}},
    "repository": {"files": {"config.pbtxt": "digest"}},
}  # fmt: skip


def _places(form: Form, value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the place of everything that has a type, as in an example that has one of each."""
    if place and form is not object:
        yield place
    if isinstance(form, (Each, dict)):
        for key, inner in value.items():
            yield from _places(form.form if isinstance(form, Each) else form[key], inner, (*place, key))


CASES = [(kind, place) for kind, form in FORMS.items() for place in _places(form, WRITTEN[kind])]


@pytest.mark.parametrize("kind", FORMS)
def test_what_is_written_is_without_fault(kind: str) -> None:
    assert not list(faults(WRITTEN[kind], FORMS[kind]))


@pytest.mark.parametrize("other", [None, 1.5, True])
@pytest.mark.parametrize(("kind", "place"), CASES)
def test_every_value_of_another_type_is_named(tmp_path: Path, kind: str, place: tuple[str, ...], other: object) -> None:
    data = json.loads(json.dumps({**manifest.header(kind), **WRITTEN[kind]}))
    node = data
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = other
    (tmp_path / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(manifest.DamagedManifest) as raised:
        manifest.read(tmp_path, kind=kind)
    assert f"older version: {'.'.join(place)} is " in raised.value.message
    assert raised.value.hint == manifest.REMEDIES[kind]
