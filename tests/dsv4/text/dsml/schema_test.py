"""The types that schemas of all dialects allow."""

from typing import Any

import pytest

from dsv4.text.dsml.schema import allowed_types, object_members

ROOT = {
    "$defs": {"city": {"type": "string"}, "a/b": {"type": "null"}, "loop": {"$ref": "#/$defs/loop"}}
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "dict"}, {"object"}),
        ({"type": "integer", "nullable": True}, {"integer", "null"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"enum": [True, 1.5, [], {}]}, {"boolean", "number", "integer", "array", "object"}),
        ({"const": 5}, {"integer"}),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, {"string", "array"}),
        ({"oneOf": [{"type": "string"}, {}]}, None),
        ({"allOf": [{"type": ["string", "null"]}, {"type": "string"}]}, {"string"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "type": "string"}, {"string"}),
        ({"$ref": "#/$defs/city"}, {"string"}),
        ({"$ref": "#/$defs/a~1b"}, {"null"}),
        ({"anyOf": [{"$ref": "#/$defs/city"}, {"$ref": "#/$defs/city"}]}, {"string"}),
        ({"$ref": 5}, None),
        ({"$ref": "#/$defs/nothing"}, None),
        ({"$ref": "#/$defs/loop"}, None),
        ({"$ref": "https://example.org/schema"}, None),
        ({"properties": {"a": {}}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"type": "integer", "enum": ["a"]}, None),
        ({"type": "anything"}, None),
        ({"type": 5}, None),
        ({"type": []}, None),
        ({"enum": []}, None),
        ({}, None),
        (None, None),
        (True, None),
        ("string", None),
    ],
)
def test_a_schema_allows_types(schema: Any, types: set[str] | None) -> None:
    assert allowed_types(schema, ROOT) == types


def test_references_that_multiply_are_followed_once() -> None:
    many = [{"$ref": f"#/$defs/{at}"} for at in range(12)]
    root = {"$defs": {str(at): {"anyOf": many} for at in range(12)}}
    assert allowed_types({"anyOf": many}, root) is None


CITY = {"properties": {"city": {"type": "string"}, "days": {}}, "required": ["city", "days"]}
ZIP = {"properties": {"zip": {"type": "integer"}, "days": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("root", "types", "required", "named"),
    [
        (CITY, {"city": {"string"}, "days": None}, ("city", "days"), True),
        ({"allOf": [CITY, ZIP]}, {"city": {"string"}, "days": {"integer"}, "zip": {"integer"}},
         ("city", "days"), True),
        ({"anyOf": [CITY, {**ZIP, "required": ["days"]}]},
         {"city": {"string"}, "days": None, "zip": {"integer"}}, ("days",), True),
        ({"oneOf": [CITY, ZIP]}, {"city": {"string"}, "days": None, "zip": {"integer"}}, (), True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, CITY]}}},
         {"city": {"string"}, "days": None}, ("city", "days"), True),
        ({**ZIP, "$ref": "#/$defs/a", "$defs": {"a": {"required": ["zip"]}}},
         {"zip": {"integer"}, "days": {"integer"}}, ("zip",), True),
        ({"properties": {}}, {}, (), True),
        ({"type": "object"}, {}, (), False),
        ({"properties": [], "required": 5, "anyOf": {}, "allOf": 1, "$ref": 1}, {}, (), False),
        ({"required": ["a", 5]}, {}, ("a",), False),
    ],
)  # fmt: skip
def test_a_schema_names_members(root: Any, types: Any, required: Any, named: bool) -> None:
    found = object_members(root)
    assert (found.types, found.required, found.named) == (types, required, named)


def test_references_to_members_that_multiply_are_followed_once() -> None:
    many = [{"$ref": f"#/$defs/{at}"} for at in range(12)]
    defs = {str(at): {"anyOf": many, "properties": {f"p{at}": {}}} for at in range(12)}
    assert len(object_members({"anyOf": many, "$defs": defs}).types) == 12
