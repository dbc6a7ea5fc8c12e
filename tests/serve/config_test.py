"""Settings: order of sources, error messages, and the table that drives them."""

import dataclasses
import tomllib
from pathlib import Path

import pytest

from serve.config import (
    ConfigError,
    EngineSettings,
    ServerSettings,
    TransferSettings,
    load_config,
    parse_address,
    settings_table,
)


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    return str(file)


def test_flags_beat_the_environment_which_beats_the_file_which_beats_defaults(tmp_path):
    file = write(tmp_path, "[engine]\npages = 1\nchunk_tokens = 1\ndecode_rows = 1\n")
    environment = {"DSV4_PAGES": "2", "DSV4_CHUNK_TOKENS": "2"}
    config = load_config({"pages": "3"}, file=file, environment=environment)
    engine = config.engine
    assert (engine.pages, engine.chunk_tokens, engine.decode_rows) == (3, 2, 1)
    assert engine.page_tokens == 256
    assert config.sources["pages"] == "flag --pages"
    assert config.sources["chunk_tokens"] == "environment DSV4_CHUNK_TOKENS"
    assert config.sources["decode_rows"] == f"file {file}"
    assert config.sources["page_tokens"] == "default"


def test_the_file_may_come_from_the_environment(tmp_path):
    file = write(tmp_path, "[server]\ngrace_s = 3\n")
    assert load_config({}, environment={"DSV4_CONFIG": file}).server.grace_s == 3.0


def test_the_rendered_settings_read_back_as_the_same_settings(tmp_path):
    flags = {
        "model": "/tmp/some model",
        "prefill": "a:1,b:2",
        "reflection": "false",
        "heartbeat_s": "0.25",
        "listen": "[::1]:0",
    }
    config = load_config(flags, environment={})
    again = load_config({}, file=write(tmp_path, config.render()), environment={})
    assert (again.engine, again.transfer, again.server) == (
        config.engine,
        config.transfer,
        config.server,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[engine]\npagess = 1", ["[engine]", "pagess", "page_tokens"]),
        ("[motor]\n", ["motor", "engine, transfer, server"]),
        ("[engine]\npages = 'x'", ["pages", "'x'", "an integer of at least 0"]),
        ("[engine]\npages = true", ["pages", "True"]),
        ("[engine]\npages = 1.5", ["pages", "1.5"]),
        ("[engine]\nchunk_tokens = 0", ["chunk_tokens", "at least 1"]),
        ("[engine]\nindex_k_format = 'fp4'", ["index_k_format", "fp4", "fp8"]),
        ("[transfer]\nprefill = ['x']", ["prefill", "HOST:PORT"]),
        ("[transfer]\nprefill = 'a:1'", ["prefill", "HOST:PORT"]),
        ("[transfer]\nheartbeat_s = 0", ["heartbeat_s", "above 0"]),
        ("[engine\n", ["valid TOML"]),
    ],
)
def test_an_error_in_the_file_names_file_key_value_and_expectation(tmp_path, text, words):
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config({}, file=file, environment={})
    for word in [file, *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("pages", "many", "an integer of at least 0"),
        ("pages", "-1", "an integer of at least 0"),
        ("digest", "half", "one of full, sampled, off"),
        ("speculative", "yes", "one of off, mtp"),
        ("verify_timeout_s", "nan", "a number above 0"),
        ("reflection", "maybe", "true or false"),
        ("listen", "here", "HOST:PORT"),
        ("listen", "host:99999", "65535"),
    ],
)
def test_an_error_in_flag_or_environment_names_it(name, text, expected):
    for flags, environment, source in (
        ({name: text}, {}, "flag --" + name.replace("_", "-")),
        ({}, {"DSV4_" + name.upper(): text}, "environment DSV4_" + name.upper()),
    ):
        with pytest.raises(ConfigError) as caught:
            load_config(flags, environment=environment)
        assert str(caught.value).startswith(source)
        assert text in str(caught.value) and expected in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="--config"):
        load_config({}, file=str(tmp_path / "absent.toml"), environment={})


def test_settings_made_in_code_are_checked_too():
    with pytest.raises(ConfigError, match=r"EngineSettings\.pages"):
        EngineSettings(pages=-1)
    with pytest.raises(ConfigError, match=r"TransferSettings\.digest"):
        TransferSettings(digest="some")
    with pytest.raises(ConfigError, match=r"ServerSettings\.listen"):
        ServerSettings(listen="nowhere")


def test_a_token_and_its_draft_need_two_rows_of_a_step():
    with pytest.raises(ConfigError, match=r"decode_rows: seen 1, expected at least 2 with specul"):
        load_config({"speculative": "mtp", "decode_rows": "1"}, environment={})
    assert EngineSettings(speculative="mtp", decode_rows=3).draft_tokens == 1
    assert EngineSettings(decode_rows=1).draft_tokens == 0


def test_every_name_is_unique_across_sections_and_explained():
    table = settings_table()
    assert len({row.name for row in table}) == len(table)
    for row in table:
        assert row.text and row.roles
        assert row.variable == "DSV4_" + row.name.upper()


def test_every_default_keeps_its_own_rule():
    config = load_config({}, environment={})
    for section in (config.engine, config.transfer, config.server, config.chat):
        assert dataclasses.replace(section) == section
    assert set(tomllib.loads(config.render())) == {"engine", "transfer", "server", "chat"}


def test_each_role_listens_on_a_port_of_its_own():
    server = ServerSettings()
    assert len({server.listen_of(role) for role in ("prefill", "decode", "local")}) == 3
    assert ServerSettings(listen="0.0.0.0:1").listen_of("decode") == "0.0.0.0:1"


@pytest.mark.parametrize(("text", "address"), [("a.b:1", ("a.b", 1)), ("[::1]:0", ("[::1]", 0))])
def test_an_address_is_host_and_port(text, address):
    assert parse_address(text, "x") == address


@pytest.mark.parametrize("text", ["", ":1", "a", "a:", "a:b", "::1:1", "a:-1", "a:²"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address(text, "x")
