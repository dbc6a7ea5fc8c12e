"""The fixed texts of DeepSeek-V4's prompt format, byte for byte as the model was trained on them.

They are constants of the format, like the names of control tokens, and equal the ones in the
`encoding_dsv4.py` that ships with the checkpoints. Names of control tokens inside them are control
tokens. Only this module spells them.
"""

from dsv4.text.chat.messages import ReasoningEffort, Release

# Between parts of a user turn, and before the tools block, response format and tool calls block.
SEPARATOR = "\n\n"

TOOL_RESULT_BEGIN = "<tool_result>"
TOOL_RESULT_END = "</tool_result>"

TOOLS_BEGIN = """## Tools

You have access to a set of tools to help answer the user's question. \
You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. \
For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set \
`string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside \
<think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_END = """

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""

RESPONSE_FORMAT_BEGIN = """## Response Format:

You MUST strictly adhere to the following schema to reply:
"""

# A block of calls; between its lines stand invokes, between theirs parameters, joined by newlines.
CALLS_BEGIN = "<｜DSML｜tool_calls>\n"
CALLS_END = "\n</｜DSML｜tool_calls>"
INVOKE_BEGIN = '<｜DSML｜invoke name="'
INVOKE_NAMED = '">\n'
INVOKE_END = "\n</｜DSML｜invoke>"
PARAMETER_BEGIN = '<｜DSML｜parameter name="'
PARAMETER_NAMED_STRING = '" string="true">'
PARAMETER_NAMED_JSON = '" string="false">'
PARAMETER_END = "</｜DSML｜parameter>"

_EFFORT_ABSOLUTE = """\
Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve \
the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and \
adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, \
considered alternative, and rejected hypothesis to ensure absolutely no assumption is left \
unchecked.

"""
_EFFORT_BEYOND = """\
Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: \
exhaustively decompose the problem into its most fundamental components, trace every causal chain \
to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and \
are certain that no assumption remains unchecked and no error remains undiscovered.

"""

# Stands before the first message in thinking mode. The preview has no level below high.
EFFORT: dict[Release, dict[ReasoningEffort, str]] = {
    Release.PREVIEW: {
        ReasoningEffort.LOW: "",
        ReasoningEffort.HIGH: "",
        ReasoningEffort.MAX: _EFFORT_ABSOLUTE,
    },
    Release.V0731: {
        ReasoningEffort.LOW: "",
        ReasoningEffort.HIGH: _EFFORT_ABSOLUTE,
        ReasoningEffort.MAX: _EFFORT_BEYOND,
    },
}
