"""The JSON text of a parameter's value, from what the model wrote and the types its schema allows.

JSON that the model wrote is passed on as it stands, so numbers keep all their digits. Nothing is
converted that could not be converted back.
"""

import json
import re
from typing import Any

from dsv4.text.chat import strict_json
from dsv4.text.dsml import schema
from dsv4.text.dsml.schema import Types

_INTEGER = re.compile(r"-?[0-9]+(?:\.0+)?")
_JSON_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}


class MalformedValueError(ValueError):
    """What the model wrote is no value that the schema could mean."""


class UnkeptValueError(MalformedValueError):
    """It is JSON, but no client could send it back in a conversation."""


def json_string(text: str) -> str:
    """Returns `text` as a JSON string that can be encoded as UTF-8."""
    return _SURROGATE.sub(_escape, json.dumps(text, ensure_ascii=False))


def json_value(text: str) -> tuple[str, str] | None:
    """Returns type and JSON text of what `text` says in JSON, None if it is no JSON.

    Control characters in strings, which JSON wants escaped, are escaped. NaN and Infinity are not
    JSON. The type is "integer" for what a schema calls an integer, 5.0 included.

    Raises:
      UnkeptValueError: it holds a number beyond float64, an integer of too many digits or an
        escaped half of a character, or is nested too deeply.
    """
    text = text.strip(" \t\r\n")
    if not _is_json(text):
        text = _JSON_STRING.sub(lambda match: _CONTROL.sub(_escape, match[0]), text)
        if not _is_json(text):
            return None
    text = _SURROGATE.sub(_escape, text)
    if text[0] in "-0123456789":
        return (schema.INTEGER if _INTEGER.fullmatch(text) else schema.NUMBER), text
    return _TYPES[text[0]], text


def read_value(written: str, flag: str | None, types: Types) -> str:
    """Returns the JSON text of a value.

    Args:
      written: what stands between the tags.
      flag: the attribute `string`: "true" for verbatim text, "false" for JSON, None if missing,
        which counts as text where the schema allows text.
      types: what the schema allows.

    Raises:
      MalformedValueError: the flag has another value, or there is no such value.
    """
    said = None if flag is None else flag.strip().lower()
    if said not in (None, "true", "false"):
        raise MalformedValueError(f'string={flag!r}, expected "true" or "false"')
    text_allowed = types is None or schema.STRING in types
    if said == "true" and not text_allowed:
        converted = _convert(written, types)
        return json_string(written) if converted is None else converted
    if said == "true" or (said is None and text_allowed):
        return json_string(written)
    return _read_json(written, types, text_allowed)


def _read_json(written: str, types: Types, text_allowed: bool) -> str:
    try:
        found = json_value(written)
    except UnkeptValueError:
        if types is None or not text_allowed:
            raise
        return json_string(written)
    if found is None:
        if text_allowed:
            return json_string(written)
        converted = _convert(written, types)
        if converted is None:
            expected = " or ".join(sorted(types or ()))
            raise MalformedValueError(f"no JSON, expected {expected}")
        return converted
    kind, text = found
    if types is None or kind in types:
        return text
    if text_allowed:
        return json_string(written)
    if kind == schema.STRING:
        # JSON inside a JSON string: the model quoted once too often.
        converted = _convert(json.loads(text), types)
        if converted is not None:
            return converted
    return text


def _convert(written: str, types: Types) -> str | None:
    """Returns the JSON text of the one value of `types` that `written` can mean, None if none."""
    text = written.strip()
    try:
        found = json_value(_PYTHON_LITERALS.get(text, text))
    except UnkeptValueError:
        return None
    if found is None or (types is not None and found[0] not in types):
        return None
    return found[1]


def _is_json(text: str) -> bool:
    problems: list[str] = []

    def read_integer(number: str) -> None:
        problems.append(strict_json.expected_integer(number))

    def read_float(number: str) -> None:
        problems.append(strict_json.expected_float(number))

    try:
        value = json.loads(
            text, parse_int=read_integer, parse_float=read_float, parse_constant=_refuse
        )
    except RecursionError as error:
        raise UnkeptValueError("nested too deeply") from error
    except ValueError:
        return False
    if _ESCAPED_SURROGATE.search(text) and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        problems.append("Unicode text")
    for expected in filter(None, problems):
        raise UnkeptValueError(f"expected {expected}")
    return True


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no JSON value")


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


_TYPES = {
    '"': schema.STRING,
    "{": schema.OBJECT,
    "[": schema.ARRAY,
    "t": schema.BOOLEAN,
    "f": schema.BOOLEAN,
    "n": schema.NULL,
}
