"""The model that the package ships."""

import pytest

from dsv4.checkpoint.fingerprint import model_fingerprint
from serve import default_model
from serve.config import ConfigError
from serve.default_model import is_shipped, shipped_model


def test_the_package_ships_a_model_that_is_known_by_its_fingerprint():
    assert is_shipped(model_fingerprint(shipped_model()))
    assert not is_shipped("00")


def test_a_package_without_it_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(default_model, "FOLDER", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="expected model.safetensors there") as caught:
        shipped_model()
    assert str(tmp_path) in str(caught.value) and "--model DIR" in str(caught.value)
    assert not is_shipped("00")
