"""`trtbuild mock`: serve a mock of a Triton LLM server, for client code, dashboards and benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtbuild.cli.options import OUTPUT_FILE, common
from trtbuild_client import mock_options


@click.command(epilog="Example: trtbuild mock --ttft lognormal:200ms,0.3 --itl exponential:20ms --fault reset@5=0.01")
@mock_options.ports
@mock_options.model
@mock_options.times
@mock_options.faults
@click.option(
    "--schedule-file",
    type=OUTPUT_FILE,
    help="Write what was sent when to this JSON file in the end; it is always at /mock/schedule of the HTTP port.",
)
@common
def mock(schedule_file: Path | None, quiet: bool, **fields: Any) -> None:
    """Serve ensemble, tensorrt_llm_bls and tensorrt_llm (or the LLM API's model) until SIGTERM; print the addresses.

    A prompt may ask for what it wants: "[mock fault=stall at=3 tokens=8 ttft=20ms itl=5ms chunk=2]" anywhere in it.
    """
    import json
    import sys

    from trtbuild.console import print_text
    from trtbuild_client.mock.options import MockOptions
    from trtbuild_client.mock.server import Addresses, serve
    from trtbuild_client.output_file import check_apart

    tls = [("--tls-ca", fields["tls_ca"]), ("--tls-cert", fields["tls_cert"]), ("--tls-key", fields["tls_key"])]
    check_apart([("--schedule-file", schedule_file)], tls)

    def announce(addresses: Addresses) -> None:
        print_text(json.dumps(addresses.to_json()))
        sys.stdout.flush()

    serve(MockOptions(**fields), on_ready=announce, schedule_file=schedule_file)
