"""docs/operations.md speaks of everything a server says."""

from pathlib import Path

import grpc
import pytest

from disagg.errors import ERRORS_BY_CODE
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


@pytest.mark.parametrize("field", [f.name for f in pb.ServerInfoResponse.DESCRIPTOR.fields])
def test_every_figure_is_explained(field):
    assert f"`{field}`" in TEXT


@pytest.mark.parametrize("code", sorted(ERRORS_BY_CODE))
def test_every_status_is_explained(code):
    assert hasattr(grpc.StatusCode, code)
    assert f"\n| {code}" in TEXT or f", {code}" in TEXT
