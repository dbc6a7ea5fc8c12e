"""Settings of the hand-over that cannot be used are refused by name before anything starts."""

from __future__ import annotations

import pytest

from serve.config import ConfigError, EngineSettings, TransferSettings
from serve.handover import decode_engine, prefill_engine


def never_loads():
    raise AssertionError("the model must not be loaded")


@pytest.mark.parametrize("make", [decode_engine, prefill_engine])
@pytest.mark.parametrize(("content", "words"), [(None, "a readable file"), (b"short", "5 bytes")])
def test_a_shared_secret_that_cannot_be_used_is_refused_by_name(tmp_path, make, content, words):
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    transfer = TransferSettings(prefill=("127.0.0.1:1",), shared_secret_file=file)
    with pytest.raises(ConfigError, match="--shared-secret-file") as error:
        make(never_loads, EngineSettings(), transfer, {})
    assert words in str(error.value)
