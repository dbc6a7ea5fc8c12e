"""Log lines for people and for machines."""

import json
import logging

import pytest

from serve.logs import event, setup_logging

LOG = logging.getLogger("serve.somewhere")


@pytest.fixture(autouse=True)
def _restore():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_lines_carry_fields_behind_the_message(capsys):
    setup_logging()
    event(LOG, "request", id="a", tokens=3, absent=None)
    assert capsys.readouterr().err.endswith(" I request id=a tokens=3\n")


def test_json_lines_are_objects_with_the_fields_as_keys(capsys):
    setup_logging(log_format="json")
    event(LOG, "request", id="a", tokens=3)
    try:
        raise ValueError("bad")
    except ValueError:
        LOG.exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["message"] == "request" and first["id"] == "a" and first["tokens"] == 3
    assert first["level"] == "info" and first["logger"] == "serve.somewhere"
    assert "ValueError: bad" in second["exception"]


def test_lines_below_the_level_are_left_out(capsys):
    setup_logging(level="warning")
    LOG.info("quiet")
    LOG.warning("loud")
    assert "quiet" not in (error := capsys.readouterr().err) and "loud" in error
