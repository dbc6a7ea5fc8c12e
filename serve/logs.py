"""Log lines for people (text) or machines (JSON), on stderr.

Owns the format. `event` writes one line with named fields; in text they follow the message as
`key=value`, in JSON they are keys beside `time`, `level`, `logger` and `message`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO

_FIELDS = "dsv4_fields"


class _StderrHandler(logging.StreamHandler):
    """Looks `sys.stderr` up at each line, so that a progress bar can put lines above itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # pyright: ignore[reportIncompatibleVariableOverride]
        return sys.stderr


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, _FIELDS, {})
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{moment}.{int(record.msecs):03d} {record.levelname[0]} {record.getMessage()}"
        line += "".join(f" {key}={value}" for key, value in fields.items())
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, _FIELDS, {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def setup_logging(*, log_format: str = "text", level: str = "info") -> None:
    """Sends the logs of this process to stderr; replaces what was set up before."""
    handler = _StderrHandler()
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for noisy in ("jax", "absl", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def event(
    logger: logging.Logger, message: str, *, level: int = logging.INFO, **fields: Any
) -> None:
    """Logs one line with fields; None values are left out."""
    kept = {key: value for key, value in fields.items() if value is not None}
    logger.log(level, message, extra={_FIELDS: kept})
