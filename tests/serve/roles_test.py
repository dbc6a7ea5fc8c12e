"""What a role's engine is made of: the settings that can only be judged with the model."""

import asyncio

import pytest

from dsv4.tiny import build_tiny_checkpoint
from serve import roles
from serve.config import ConfigError, EngineSettings, TransferSettings
from serve.progress import create_progress


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    build_tiny_checkpoint(folder)
    return folder


@pytest.fixture(autouse=True)
def jax_as_it_is(monkeypatch):
    monkeypatch.setattr(roles, "_configure_jax", lambda settings: None)


def engine(model, **settings):
    chosen = EngineSettings(model=model, max_context=256, **settings)
    return roles.build_engine("local", chosen, TransferSettings(), create_progress())


def test_kernels_that_do_not_take_the_storage_format_are_a_configuration_error(model):
    refused = engine(model, kernels="pallas", index_k_format="f32")
    with pytest.raises(ConfigError, match="--kernels: seen 'pallas', expected auto or reference, "):
        asyncio.run(refused.start())


def test_the_choice_of_kernels_is_among_the_settings_shown(model):
    assert engine(model).status().settings["kernels"] == "auto"
    assert engine(model, kernels="reference").status().settings["kernels"] == "reference"
