"""Which members an object's JSON schema names, and which types it allows; no validation beyond.

A schema that says nothing, contradicts itself or can't be followed allows everything: clients send
schemas of many dialects, and the value of an argument must not depend on our understanding them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# None stands for all types. "number" without "integer" does not occur.
Types = frozenset[str] | None

STRING = "string"
INTEGER = "integer"
NUMBER = "number"
BOOLEAN = "boolean"
NULL = "null"
ARRAY = "array"
OBJECT = "object"

_NAMES = {
    "string": {STRING},
    "str": {STRING},
    "integer": {INTEGER},
    "int": {INTEGER},
    "number": {NUMBER, INTEGER},
    "float": {NUMBER, INTEGER},
    "boolean": {BOOLEAN},
    "bool": {BOOLEAN},
    "null": {NULL},
    "array": {ARRAY},
    "list": {ARRAY},
    "object": {OBJECT},
    "dict": {OBJECT},
}
_MAX_DEPTH = 16


@dataclass(frozen=True)
class Members:
    """What a schema says of the members of an object.

    Attributes:
      types: what each member that it names may be.
      required: those that every object has.
      named: it says which members there are, even if there are none.
    """

    types: Mapping[str, Types] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    named: bool = False


def object_members(root: Mapping[str, Any]) -> Members:
    """Returns the members of the objects that `root` allows, wherever in it they are named.

    Of alternatives, members of any count, and those are required that all of them require.
    """
    return _members(root, root, 0, {})


def allowed_types(schema: Any, root: Mapping[str, Any]) -> Types:
    """Returns the types of the values that `schema`, a part of `root`, allows."""
    return _allowed(schema, root, 0, {}) or None


def _allowed(schema: Any, root: Mapping[str, Any], depth: int, known: dict[str, Types]) -> Types:
    """Returns the types; `known` are those of references followed before, None of one within."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    types = _named(schema.get("type"))
    if types is None and isinstance(schema.get("properties"), Mapping):
        types = frozenset({OBJECT})
    if types is None and "items" in schema:
        types = frozenset({ARRAY})
    values = schema.get("enum")
    if isinstance(values, list | tuple) and values:
        types = _both(types, _union([frozenset(_type_of(value)) for value in values]))
    if "const" in schema:
        types = _both(types, frozenset(_type_of(schema["const"])))
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if isinstance(options, list | tuple) and options:
            parts = [_allowed(each, root, depth + 1, known) for each in options]
            types = _both(types, _union(parts))
    conditions = schema.get("allOf")
    if isinstance(conditions, list | tuple):
        for each in conditions:
            types = _both(types, _allowed(each, root, depth + 1, known))
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in known:
            known[reference] = None
            target = _follow(reference, root)
            known[reference] = _allowed(target, root, depth + 1, known)
        types = _both(types, known[reference])
    if schema.get("nullable") is True and types is not None:
        types |= {NULL}
    return types


def _members(
    schema: Any, root: Mapping[str, Any], depth: int, known: dict[str, Members]
) -> Members:
    """Returns the members; `known` are those of references, as in `_allowed`."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return Members()
    properties, required = schema.get("properties"), schema.get("required")
    named = isinstance(properties, Mapping)
    types = {key: allowed_types(each, root) for key, each in properties.items()} if named else {}
    names = required if isinstance(required, list | tuple) else ()
    found = Members(types, tuple(name for name in names if isinstance(name, str)), named)
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if isinstance(options, list | tuple) and options:
            parts = [_members(each, root, depth + 1, known) for each in options]
            found = _both_members(found, _any_members(parts))
    conditions = schema.get("allOf")
    for each in conditions if isinstance(conditions, list | tuple) else ():
        found = _both_members(found, _members(each, root, depth + 1, known))
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in known:
            known[reference] = Members()
            target = _follow(reference, root)
            known[reference] = _members(target, root, depth + 1, known)
        found = _both_members(found, known[reference])
    return found


def _both_members(first: Members, second: Members) -> Members:
    types = dict(first.types)
    for key, each in second.types.items():
        types[key] = (_both(types[key], each) or None) if key in types else each
    required = dict.fromkeys((*first.required, *second.required))
    return Members(types, tuple(required), first.named or second.named)


def _any_members(options: Sequence[Members]) -> Members:
    types: dict[str, Types] = {}
    for option in options:
        for key, each in option.types.items():
            types[key] = _union([types[key], each]) if key in types else each
    required = [
        name for name in options[0].required if all(name in each.required for each in options)
    ]
    return Members(types, tuple(required), any(option.named for option in options))


def _named(value: Any) -> Types:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return None
    types: set[str] = set()
    for name in names:
        known = _NAMES.get(name) if isinstance(name, str) else None
        if known is None:
            return None
        types |= known
    return frozenset(types) or None


def _type_of(value: Any) -> set[str]:
    for kind, name in ((str, STRING), (bool, BOOLEAN), (Mapping, OBJECT), (list, ARRAY)):
        if isinstance(value, kind):
            return {name}
    if isinstance(value, int):
        return {INTEGER}
    return {NULL} if value is None else {NUMBER, INTEGER}


def _union(options: Sequence[Types]) -> Types:
    types: frozenset[str] = frozenset()
    for option in options:
        if option is None:
            return None
        types |= option
    return types


def _both(first: Types, second: Types) -> Types:
    if first is None or second is None:
        return first if second is None else second
    return first & second


def _follow(reference: str, root: Mapping[str, Any]) -> Any:
    """Returns what a reference within the schema, like #/$defs/city, names; None if nothing."""
    if not reference.startswith("#"):
        return None
    part: Any = root
    for key in reference[1:].split("/")[1:]:
        part = part.get(key.replace("~1", "/").replace("~0", "~")) if _is_map(part) else None
    return part


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping)
