"""Triton's protobuf messages and stub, out of tritonclient: the only thing that is taken from it.

Its clients are not used: what they take differs from release to release (`enable_empty_final_response` came with 2.34), while the messages
of requests have carried such things as parameters all along.

Raises (on import):
    ClientError: tritonclient is missing, lacks its gRPC half, or was made for another protobuf.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

from trtbuild_client.errors import ClientError


def _modules() -> tuple[Any, Any, Any]:
    try:
        from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
    except _misfits() as error:
        raise ClientError(
            f"tritonclient {_version('tritonclient')} with protobuf {_version('protobuf')} cannot be used: {error}",
            hint="pip install --upgrade 'tritonclient[grpc]>=2.41' protobuf",
        ) from error
    return model_config_pb2, service_pb2, service_pb2_grpc


def _misfits() -> tuple[type[Exception], ...]:
    """Return what packages raise that do not fit together; protobuf has an error of its own for it since 5.26."""
    try:
        from google.protobuf.runtime_version import VersionError
    except ImportError:
        return ImportError, TypeError, AttributeError
    return ImportError, TypeError, AttributeError, VersionError


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


model_config_pb2, service_pb2, service_pb2_grpc = _modules()
