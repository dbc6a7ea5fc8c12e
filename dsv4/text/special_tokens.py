"""Names of DeepSeek-V4's control tokens and their ids in the real vocabulary (reference section 6).

`OFFICIAL_IDS` lists the tokens that the chat format speaks of; the real tokenizer.json has more,
which need no name here. The bar in the names is U+FF5C, not ASCII.
"""

import re
from collections.abc import Iterable

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK_BEGIN = "<think>"
THINK_END = "</think>"
DSML = "｜DSML｜"
LATEST_REMINDER = "<｜latest_reminder｜>"
ACTION = "<｜action｜>"
QUERY = "<｜query｜>"
AUTHORITY = "<｜authority｜>"
DOMAIN = "<｜domain｜>"
TITLE = "<｜title｜>"
READ_URL = "<｜read_url｜>"
IMAGE = "<｜image｜>"

OFFICIAL_IDS: dict[str, int] = {
    BOS: 0,
    EOS: 1,
    PAD: 2,
    USER: 128803,
    ASSISTANT: 128804,
    THINK_BEGIN: 128821,
    THINK_END: 128822,
    DSML: 128825,
    LATEST_REMINDER: 128828,
    ACTION: 128829,
    QUERY: 128830,
    AUTHORITY: 128831,
    DOMAIN: 128832,
    TITLE: 128836,
    READ_URL: 128845,
    IMAGE: 129279,
}


def pattern(tokens: Iterable[str]) -> re.Pattern[str]:
    """Returns a pattern with one group that matches the leftmost, then longest of `tokens`."""
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("(" + "|".join(re.escape(token) for token in longest_first) + ")")
