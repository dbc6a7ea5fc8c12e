"""Turns the settings of a role into a running server process and an exit status.

Joins what the other modules own: logs, the model, the engine of the role, the API, the lifecycle.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from pathlib import Path

from disagg.errors import DisaggError
from dsv4.text.tokenizer import Tokenizer
from serve.api.server import ApiServer, ListenError
from serve.config import Config, ConfigError
from serve.default_model import shipped_model
from serve.lifecycle import Signals, run_server
from serve.logs import setup_logging
from serve.progress import create_progress

_LOG = logging.getLogger(__name__)


def launch(role: str, config: Config) -> int:
    """Runs a server until it is told to end; 0 if it ended as told, 1 if it could not serve.

    Raises:
      ConfigError: the settings do not fit the role, the model or this machine.
    """
    _check_model(config)
    setup_logging(log_format=config.server.log_format, level=config.server.log_level)
    try:
        asyncio.run(_serve(role, config))
    except ConfigError:
        raise
    except (DisaggError, ListenError, ValueError, OSError) as error:
        _LOG.error("%s", error)
        return 1
    return 0


async def _serve(role: str, config: Config) -> None:
    signals = Signals()
    signals.install()
    model = _model_folder(config)
    engine_settings = dataclasses.replace(config.engine, model=model)

    from serve import profiling, roles

    if config.server.profiler_port:
        profiling.start_server(config.server.profiler_port)
    engine = roles.build_engine(role, engine_settings, config.transfer, create_progress())
    server = ApiServer(
        engine,
        role,
        config.server.listen_of(role),
        with_reflection=config.server.reflection,
        chat=config.chat,
    )
    await run_server(
        engine,
        server,
        load_tokenizer=lambda: read_tokenizer(model),
        grace_s=config.server.grace_s,
        signals=signals,
    )


def _model_folder(config: Config) -> Path:
    if config.engine.model is None:
        folder = shipped_model()
        _LOG.info("no --model given: serving the tiny trained model in %s", folder)
        return folder
    return config.engine.model


def _check_model(config: Config) -> None:
    folder = config.engine.model
    if folder is not None and not (folder / "config.json").is_file():
        raise ConfigError(config.sources["model"], str(folder), "a folder with a config.json")


def read_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer of the model in the folder `model`."""
    from dsv4.config import ModelConfig
    from dsv4.text import load_tokenizer

    raw = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return load_tokenizer(model, ModelConfig.from_hf(raw))
