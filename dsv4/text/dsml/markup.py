"""The pieces of DSML, the markup of DeepSeek's tool calls, exactly as the model is trained to write
them (reference section 5): a section holds invokes, an invoke holds parameters.

The encoder writes history with them; what the parser tolerates beyond them is in `tags`.
"""

from dsv4.text.special_tokens import DSML

SECTION = "tool_calls"
INVOKE = "invoke"
PARAMETER = "parameter"

SECTION_BEGIN = f"<{DSML}{SECTION}>"
SECTION_END = f"</{DSML}{SECTION}>"
INVOKE_END = f"</{DSML}{INVOKE}>"
PARAMETER_END = f"</{DSML}{PARAMETER}>"

# Between the content and the section. It belongs to the section, not to the content.
SECTION_GAP = "\n\n"


def invoke_begin(name: str) -> str:
    """Returns the tag that begins a call of tool `name`."""
    return f'<{DSML}{INVOKE} name="{name}">'


def parameter_begin(name: str, *, string: bool) -> str:
    """Returns the tag before a parameter's value: verbatim text if `string`, else JSON."""
    return f'<{DSML}{PARAMETER} name="{name}" string="{"true" if string else "false"}">'
