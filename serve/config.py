"""The settings of a server: one table of fields drives flags, environment, TOML keys and help.

Owns the order defaults < TOML file < environment `DSV4_<NAME>` < flags, and is the only module that
reads the environment. Every rule violated raises `ConfigError` with the source, the key, the value
seen and the value expected. Knows no JAX and no gRPC, so that `--help` is quick.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROLES = ("prefill", "decode", "local")
DISAGGREGATED = ("prefill", "decode")
DEFAULT_LISTEN = {
    "prefill": "127.0.0.1:7070",
    "decode": "127.0.0.1:7080",
    "local": "127.0.0.1:7090",
}
ENVIRONMENT_PREFIX = "DSV4_"
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class ConfigError(ValueError):
    """A setting that cannot be used; the message names source, key, value and expectation."""

    def __init__(self, source: str, seen: object, expected: str) -> None:
        super().__init__(f"{source}: seen {seen!r}, expected {expected}")
        self.source = source
        self.seen = seen
        self.expected = expected


def user_cache_dir() -> Path:
    """The folder for what can be made again: compiled programs."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "dsv4"


def quiet_grpc() -> None:
    """Silences the notices of gRPC's C core about closed connections.

    Call it before grpc is imported. What a person set in GRPC_VERBOSITY stays.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def default_environment(name: str, value: str) -> None:
    """Sets a variable that a library reads, unless the user has set it."""
    os.environ.setdefault(name, value)


def parse_address(text: str, source: str) -> tuple[str, int]:
    """Splits HOST:PORT (or [IPv6]:PORT); raises ConfigError naming `source`."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare) != (bare != host) or not port.isascii() or not port.isdigit():
        raise ConfigError(source, text, "HOST:PORT, for example 127.0.0.1:7080")
    if int(port) > 65535:
        raise ConfigError(source, text, "a port of at most 65535")
    return host, int(port)


def setting(
    default: Any,
    text: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    above: float | None = None,
    roles: tuple[str, ...] = ROLES,
    metavar: str = "",
    addresses: bool = False,
) -> Any:
    """A dataclass field that is also a flag, an environment variable and a TOML key.

    Args:
      default: the value, or a function without arguments that makes it.
      text: one line for `--help`.
      choices: the only strings allowed.
      minimum, above: inclusive and exclusive lower bound of a number.
      roles: the subcommands that offer the flag; file and environment accept it for every role.
      metavar: the placeholder in `--help`.
      addresses: every string must be HOST:PORT.
    """
    metadata = {
        "text": text,
        "choices": choices,
        "minimum": minimum,
        "above": above,
        "roles": roles,
        "metavar": metavar,
        "addresses": addresses,
    }
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class EngineSettings:
    """Model, memory and compiled shapes. Validated at construction."""

    model: Path | None = setting(
        None, "checkpoint folder; without it the tiny trained model of the package", metavar="DIR"
    )
    compute_dtype: str = setting(
        "auto", "type of activations and plain weights", choices=("auto", "float32", "bfloat16")
    )
    weights: str = setting(
        "packed",
        "packed = keep quantised weights as the checkpoint stores them, expanded = in compute type",
        choices=("packed", "expanded"),
    )
    kv_format: str = setting("auto", "storage of cached KV", choices=("auto", "f32", "bf16"))
    index_k_format: str = setting(
        "auto", "storage of index-K; auto = compute type", choices=("auto", "f32", "bf16", "fp8")
    )
    page_tokens: int = setting(256, "tokens per cache page", minimum=1, metavar="N")
    chunk_tokens: int = setting(256, "tokens per prefill step", minimum=1, metavar="N")
    max_context: int = setting(
        0, "prompt + generated tokens; 0 = the smaller of the model's limit and 8192", minimum=0
    )
    pages: int = setting(
        0, "cache pages; 0 = max_requests of max_context each, within 1 GiB", minimum=0
    )
    max_requests: int = setting(64, "requests that hold cache at the same time", minimum=1)
    decode_rows: int = setting(
        16, "rows of a decode step, one per request and draft; compiled in tiles of 8", minimum=1
    )
    speculative: str = setting(
        "off",
        "mtp = draft tokens with the model's MTP block and verify them; changes no token",
        choices=("off", "mtp"),
    )
    kernels: str = setting(
        "auto",
        "pallas = GPU kernels (interpreted on a CPU, thousands of times slower), reference = plain "
        "XLA; auto = the best for the device",
        choices=("auto", "reference", "pallas"),
    )
    max_queue: int = setting(1024, "waiting requests before RESOURCE_EXHAUSTED", minimum=1)
    verify_pages_s: float = setting(
        0.0,
        "seconds between looks at the cache pages of running requests for changed bytes; 0 = never",
        minimum=0,
        roles=("decode", "local"),
    )
    compile_cache: Path = setting(
        lambda: user_cache_dir() / "compile", "folder that keeps compiled programs", metavar="DIR"
    )

    def __post_init__(self) -> None:
        _check(self)
        if self.speculative != "off" and self.decode_rows < 2:
            raise ConfigError(
                "EngineSettings.decode_rows",
                self.decode_rows,
                f"at least 2 with speculative = {self.speculative} (a token and its draft)",
            )

    @property
    def draft_tokens(self) -> int:
        """Tokens a decode step may take beyond the last known one of a request."""
        return 0 if self.speculative == "off" else 1


@dataclass(frozen=True)
class TransferSettings:
    """The hand-over between prefill and decode. Validated at construction."""

    prefill: tuple[str, ...] = setting(
        (),
        "prefill servers to use, comma separated",
        roles=("decode",),
        metavar="HOST:PORT[,..]",
        addresses=True,
    )
    slab_bytes: int = setting(
        0, "largest slab; 0 = one prefill chunk", minimum=0, roles=DISAGGREGATED
    )
    landing_slabs: int = setting(
        16, "slabs of landing memory at decode", minimum=1, roles=("decode",)
    )
    outbox_slabs: int = setting(8, "slabs of the outbox at prefill", minimum=1, roles=("prefill",))
    heartbeat_s: float = setting(
        1.0, "seconds between heartbeats; two missed = peer lost", above=0, roles=DISAGGREGATED
    )
    verify_timeout_s: float = setting(
        5.0, "seconds a digest may stay wrong before DATA_LOSS", above=0, roles=DISAGGREGATED
    )
    digest: str = setting(
        "full",
        "how much of each segment is verified",
        choices=("full", "sampled", "off"),
        roles=DISAGGREGATED,
    )
    shared_secret_file: Path | None = setting(
        None,
        "file with a secret that prefill and decode share; without it they believe each other",
        roles=DISAGGREGATED,
        metavar="FILE",
    )
    prefill_timeout_s: float = setting(
        5.0, "seconds to wait for a reachable prefill", above=0, roles=("decode",)
    )
    max_attempts: int = setting(
        3, "prefill attempts of one request before it fails", minimum=1, roles=("decode",)
    )
    data_plane: str = setting("nixl", "what carries slabs", choices=("nixl",), roles=DISAGGREGATED)

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class ServerSettings:
    """The process and its front end. Validated at construction."""

    listen: str = setting(
        "",
        "gRPC address; port 0 picks a free one. Default: prefill 127.0.0.1:7070, "
        "decode :7080, local :7090",
        metavar="HOST:PORT",
        addresses=True,
    )
    grace_s: float = setting(30.0, "seconds for requests in flight after SIGTERM", minimum=0)
    reflection: bool = setting(True, "gRPC server reflection")
    log_format: str = setting("text", "log lines for people or machines", choices=("text", "json"))
    log_level: str = setting("info", "least level", choices=("debug", "info", "warning", "error"))
    profiler_port: int = setting(0, "port of the jax profiler server; 0 = none", minimum=0)

    def __post_init__(self) -> None:
        _check(self)

    def listen_of(self, role: str) -> str:
        """The address to listen on, with the default of the role filled in."""
        return self.listen or DEFAULT_LISTEN[role]


@dataclass(frozen=True)
class ChatSettings:
    """How conversations become prompts where they leave it open. Validated at construction."""

    chat_release: str = setting(
        "preview",
        "release of the checkpoint; it decides what reasoning efforts mean",
        choices=("preview", "0731"),
        roles=("decode", "local"),
    )
    chat_thinking: bool = setting(
        True, "reasoning before an answer unless the request says", roles=("decode", "local")
    )
    chat_effort: str = setting(
        "low",
        "reasoning effort unless the request says",
        choices=("low", "high", "max"),
        roles=("decode", "local"),
    )
    chat_allow_control: bool = setting(
        False,
        "names of control tokens in contents become control tokens; dangerous: whoever writes a "
        "text can end its message and speak as anybody",
        roles=("decode", "local"),
    )

    def __post_init__(self) -> None:
        _check(self)


_SECTIONS: dict[str, type] = {
    "engine": EngineSettings,
    "transfer": TransferSettings,
    "server": ServerSettings,
    "chat": ChatSettings,
}


@dataclass(frozen=True)
class Setting:
    """One row of the table of settings."""

    section: str
    name: str
    kind: type  # str, int, float, bool, Path or tuple (of strings)
    nullable: bool
    default: Any
    text: str
    choices: tuple[str, ...]
    minimum: float | None
    above: float | None
    roles: tuple[str, ...]
    metavar: str
    addresses: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def placeholder(self) -> str:
        """What `--help` shows for the value."""
        if self.choices:
            return "|".join(self.choices)
        return self.metavar or {int: "N", float: "SECONDS"}.get(self.kind, "TEXT")

    @property
    def expected(self) -> str:
        """The rule in words, for error messages."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        noun = {int: "an integer", float: "a number", bool: "true or false", Path: "a path"}
        words = noun.get(self.kind, "text")
        if self.addresses:
            words = "HOST:PORT" + (" addresses" if self.kind is tuple else "")
        if self.minimum is not None:
            words += f" of at least {self.minimum:g}"
        if self.above is not None:
            words += f" above {self.above:g}"
        return words

    def parse(self, text: str, source: str) -> Any:
        """The value written as text in a flag or an environment variable."""
        if self.kind is bool:
            if text.lower() not in _TRUE + _FALSE:
                raise ConfigError(source, text, self.expected)
            return text.lower() in _TRUE
        if self.kind is tuple:
            return self.check(tuple(x.strip() for x in text.split(",") if x.strip()), source)
        if self.kind is Path:
            return self.check(Path(text).expanduser() if text else None, source)
        try:
            value = self.kind(text)
        except ValueError:
            raise ConfigError(source, text, self.expected) from None
        return self.check(value, source)

    def convert(self, value: Any, source: str) -> Any:
        """The value of a TOML key."""
        if self.kind is Path and isinstance(value, str):
            return self.parse(value, source)
        if self.kind is tuple and isinstance(value, list):
            value = tuple(value)
        if self.kind is float and type(value) is int:
            value = float(value)
        return self.check(value, source)

    def check(self, value: Any, source: str) -> Any:
        """Returns `value` if it keeps the rule, else raises ConfigError."""
        absent = self.nullable and value is None
        if not absent and not self._accepts(value):
            raise ConfigError(source, value, self.expected)
        if self.addresses and value:
            items: tuple[str, ...] = value if self.kind is tuple else (value,)
            for address in items:
                parse_address(address, source)
        return value

    def _accepts(self, value: Any) -> bool:
        if self.kind is not bool and type(value) is bool:
            return False
        if not isinstance(value, self.kind):
            return False
        if isinstance(value, tuple):
            return all(isinstance(item, str) for item in value)
        return (
            (not self.choices or value in self.choices)
            and (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
        )


def settings_table() -> tuple[Setting, ...]:
    """Every setting of every section, in the order of `--help`."""
    return tuple(row for section in _SECTIONS for row in _rows(section))


def _rows(section: str) -> Iterator[Setting]:
    cls = _SECTIONS[section]
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        default = item.default
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        hint = hints[item.name]
        inner = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        nullable = type(None) in typing.get_args(hint)
        kind = inner[0] if nullable else (typing.get_origin(hint) or hint)
        yield Setting(
            section=section,
            name=item.name,
            kind=kind,
            nullable=nullable,
            default=default,
            **item.metadata,
        )


def _check(settings: Any) -> None:
    section = next(name for name, cls in _SECTIONS.items() if isinstance(settings, cls))
    for row in _rows(section):
        row.check(getattr(settings, row.name), f"{type(settings).__name__}.{row.name}")


@dataclass(frozen=True)
class Config:
    """All settings of a server, and where each one came from.

    `sources` maps a setting's name to "default", "file PATH", "environment NAME" or "flag NAME".
    """

    engine: EngineSettings
    transfer: TransferSettings
    server: ServerSettings
    chat: ChatSettings
    sources: Mapping[str, str]

    def render(self) -> str:
        """The effective settings as TOML that `--config` reads back."""
        lines: list[str] = []
        for section in _SECTIONS:
            lines.append(f"[{section}]")
            for row in _rows(section):
                value = getattr(getattr(self, section), row.name)
                written = f"{row.name} = {_toml(value)}" if value is not None else f"# {row.name}"
                lines.append(f"{written:<44} # {self.sources[row.name]}")
            lines.append("")
        return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, int | float):
        return repr(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def load_config(
    flags: Mapping[str, str],
    *,
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Joins file, environment and flags.

    Args:
      flags: setting name -> text, only of the flags given.
      file: path of a TOML file with one table a section; default DSV4_CONFIG.
      environment: the variables; the process's own by default.

    Raises:
      ConfigError: unknown key, or a value that breaks the setting's rule.
    """
    environment = os.environ if environment is None else environment
    file = file or environment.get(ENVIRONMENT_PREFIX + "CONFIG")
    values: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    table = settings_table()
    sources = {row.name: "default" for row in table}
    if file:
        _read_file(file, values, sources)
    for row in table:
        if row.variable in environment:
            source = f"environment {row.variable}"
            values[row.section][row.name] = row.parse(environment[row.variable], source)
            sources[row.name] = source
        if row.name in flags:
            source = f"flag {row.flag}"
            values[row.section][row.name] = row.parse(flags[row.name], source)
            sources[row.name] = source
    return Config(
        engine=EngineSettings(**values["engine"]),
        transfer=TransferSettings(**values["transfer"]),
        server=ServerSettings(**values["server"]),
        chat=ChatSettings(**values["chat"]),
        sources=sources,
    )


def _read_file(file: str, values: dict[str, dict[str, Any]], sources: dict[str, str]) -> None:
    try:
        tables = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("--config", file, f"a readable file ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"file {file}", str(error), "valid TOML") from None
    for section, table in tables.items():
        if section not in _SECTIONS or not isinstance(table, dict):
            raise ConfigError(f"file {file}", section, "a table of " + ", ".join(_SECTIONS))
        rows = {row.name: row for row in _rows(section)}
        for key, value in table.items():
            if key not in rows:
                raise ConfigError(
                    f"file {file} [{section}]", key, "one of the keys " + ", ".join(rows)
                )
            source = f"file {file} [{section}] {key}"
            values[section][key] = rows[key].convert(value, source)
            sources[key] = f"file {file}"
