"""Takes the tool calls out of a streamed response, whatever the pieces are that it arrives in.

Text outside of blocks of markup (see `blocks`) is shown as it is, exactly once and in order, and so
is text in a block that is neither value nor JSON body. A call is made once its invoke is complete
and its block is known to be markup; one that the reasoning ends with, once the content has ended
and called nothing. What is held back is what may still become markup or belong to it. What was read
as something it is not is read again, each lexeme a bounded number of times: work is linear.
"""

import copy
import re
from collections import deque
from collections.abc import Iterable, Sequence

from dsv4.text.chat.messages import Tool
from dsv4.text.dsml.blocks import Block, Result
from dsv4.text.dsml.calls import CallReader, Invoke, ToolChoice, make_call
from dsv4.text.dsml.events import Call, Event, Flaw, Problem, Text
from dsv4.text.dsml.invokes import TAG_DEBRIS, Ending, InvokeReader, Outcome
from dsv4.text.dsml.quoting import CodeTracker, QuotedLines
from dsv4.text.dsml.tags import Control, Element, Lexeme, Lexer, Shape, Tag, raw_text
from dsv4.text.reasoning import ReasoningParser
from dsv4.text.special_tokens import THINK_BEGIN, THINK_END

# Line breaks, the indentation behind them, and a doubled "<", that belong to a block that follows.
_TAIL = re.compile(r"(?:(?:\r?\n){1,2}[ \t]{0,16}<?|(?:\r?\n)?\r)\Z")
_MAX_TAIL = 21
# How often one tag may be read again because another section begins behind it.
_MAX_REPLAYS = 8


class DsmlParser:
    """Parses one response.

    `thinking` says whether it starts within the reasoning, `think_tokens` that <think> and </think>
    come by `push_think` only and are text where text spells them, `marker_tokens` the same of the
    DSML marker and `push_marker`; markers that are written otherwise are read all the same.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,
        request_id: str,
        *,
        thinking: bool,
        think_tokens: bool = False,
        marker_tokens: bool = False,
    ) -> None:
        self._calls = CallReader(tools, choice)
        self._request_id = request_id
        self._reasoning = ReasoningParser(thinking=thinking)
        self._lexer = Lexer(think_tags=not think_tokens, marker_in_text=not marker_tokens)
        self._code = CodeTracker()
        self._block: Block | None = None
        # What is to be read next, whether the code tracker has seen it, and how often it was read
        # before. None stands where the code around the block turns out to be none.
        self._queue: deque[tuple[Lexeme | None, bool, int]] = deque()
        self._drafts: list[Result] = []  # what the reasoning ended with
        self._draft_text = ""
        self._replays = 0
        self._in_section = False  # in the line where the last block left a section open
        self._tail = ""
        self._astray = False  # a call broke off; what follows may stand within its value
        self._made = 0
        self._events: list[Event] = []
        self._shown: list[str] = []
        self._shown_as_reasoning = thinking

    def push(self, text: str) -> list[Event]:
        """Takes the next text; returns what became certain with it."""
        for lexeme in self._lexer.push(text):
            self._take(lexeme)
        return self._take_events()

    def push_think(self, *, end: bool) -> list[Event]:
        """Takes the control token <think> or, if `end`, </think>; as `push`.

        Where it means nothing it is a control token like others, see `push_control`.
        """
        if end and self._reasoning.active:
            for lexeme in self._lexer.finish():
                self._take(lexeme)
            self._take(Tag(THINK_END, Element.THINK, Shape.END, marked=False))
        elif not end and self._block is None and not self._lexer.in_tag:
            self._begin_reasoning()
        else:
            self._take_control(THINK_END if end else THINK_BEGIN)
        return self._take_events()

    def push_marker(self) -> list[Event]:
        """Takes the control token of the DSML marker; as `push`."""
        for lexeme in self._lexer.push_marker():
            self._take(lexeme)
        return self._take_events()

    def push_control(self, name: str) -> list[Event]:
        """Takes a control token that is no markup; as `push`.

        Its name is part of the value it stands in, a call with it in a tag is no call, and
        elsewhere it is dropped: a control token is no text.
        """
        self._take_control(name)
        return self._take_events()

    def finish(self, *, cut: bool) -> list[Event]:
        """Ends the response; `cut` says that it was stopped before the model was done.

        Events are in the order in which the model wrote what they tell of.
        """
        lexemes = self._lexer.finish()
        for lexeme in lexemes:
            block = self._block
            cut_off = block is not None and block.in_tags
            if block is not None and len(lexemes) > 1:
                cut_off = cut_off and block.reader is not None and block.certain
            if isinstance(lexeme, str) and block is not None and cut_off:
                block.keep(lexeme)  # the beginning of a tag, or what would have been part of it
            else:
                self._take(lexeme)
        while self._block is not None:
            self._finish_block(self._block, cut=cut)
            self._work()
        self._show(self._take_tail())
        content = self._take_events()
        drafts = self._make_drafts()
        return [*drafts, *content, *self._demand()]

    def stop(self) -> list[Event]:
        """Ends the response where its text ends that was shown so far.

        What is held back stands behind that, but for calls that the reasoning ended with.
        """
        self._lexer.finish()
        self._queue.clear()
        self._block, self._tail = None, ""
        return [*self._make_drafts(), *self._demand()]

    def _make_drafts(self) -> list[Event]:
        drafts, self._drafts = self._drafts, []
        for result in drafts:
            self._make(result)
        return self._take_events()

    def _demand(self) -> list[Event]:
        demand = self._calls.demand(self._made)
        return [] if demand is None else [demand]

    def _take(self, lexeme: Lexeme) -> None:
        self._queue.append((lexeme, False, 0))
        self._work()

    def _take_control(self, name: str) -> None:
        if not self._lexer.in_tag:
            self._take(Control(name))
            return
        self._lexer.spoil()
        reader = None if self._block is None else self._block.reader
        if reader is not None and not reader.closed:
            reader.spoil()

    def _work(self) -> None:
        while self._queue:
            lexeme, tracked, self._replays = self._queue.popleft()
            if lexeme is not None:
                self._feed(lexeme, tracked=tracked)
            elif self._block is not None:
                self._uncode(self._block)

    def _again(
        self, lexemes: Iterable[Lexeme | None], *, tracked: bool = False, replays: int = 0
    ) -> None:
        """Puts lexemes before all that is to be read."""
        self._queue.extendleft((each, tracked, replays) for each in reversed([*lexemes]))

    # Text. `tracked` says that the code tracker has seen the lexeme already.

    def _feed(self, lexeme: Lexeme, *, tracked: bool) -> None:
        if isinstance(lexeme, Control) and (self._block is None or not self._block.takes_control):
            return
        if self._block is not None:
            self._feed_block(self._block, lexeme, tracked=tracked)
        elif isinstance(lexeme, str):
            self._feed_text(lexeme, tracked=tracked)
        elif lexeme.element is Element.THINK:
            self._feed_think(lexeme, tracked=tracked)
        elif lexeme.marked or self._may_begin(lexeme):
            self._begin_block(lexeme, tracked=tracked)
        else:
            self._feed_text(lexeme.raw, tracked=tracked)

    def _feed_text(self, text: str, *, tracked: bool) -> None:
        self._reasoning.saw(text)
        self._in_section = self._in_section and "\n" not in text
        if not tracked:
            self._code.feed(text)
        text = self._take_tail() + text
        tail = _TAIL.search(text, max(0, len(text) - _MAX_TAIL))
        length = len(text) if tail is None else tail.start()
        self._tail = text[length:]
        self._show(text[:length])

    def _feed_think(self, tag: Tag, *, tracked: bool) -> None:
        if tag.shape is Shape.END and self._reasoning.active:
            self._end_reasoning()
        elif tag.shape is Shape.END:
            self._begin_block(tag, tracked=tracked)
        elif not self._begin_reasoning():
            self._feed_text(tag.raw, tracked=tracked)

    def _begin_reasoning(self) -> bool:
        reasoning = self._reasoning.active
        if not self._reasoning.begin():
            return False
        self._show(self._take_tail(), reasoning=reasoning)
        self._drop_drafts()
        self._code = CodeTracker()
        return True

    def _end_reasoning(self) -> None:
        self._show(self._take_tail())
        self._in_section = False
        self._reasoning.end()
        self._code = CodeTracker()

    def _show(self, text: str, *, reasoning: bool | None = None) -> None:
        if not text:
            return
        if reasoning is None:
            reasoning = self._reasoning.active
        if reasoning is not self._shown_as_reasoning:
            self._collect_shown()
        self._shown_as_reasoning = reasoning
        self._shown.append(text)

    def _say(self, event: Event) -> None:
        self._collect_shown()
        self._events.append(event)

    def _collect_shown(self) -> None:
        if self._shown:
            self._events.append(Text("".join(self._shown), self._shown_as_reasoning))
            self._shown = []

    def _take_tail(self) -> str:
        tail, self._tail = self._tail, ""
        return tail

    def _take_events(self) -> list[Event]:
        self._collect_shown()
        events, self._events = self._events, []
        return events

    # Blocks

    def _may_begin(self, tag: Tag) -> bool:
        """Whether a tag without marker begins a section or a call if one with marker follows."""
        if tag.broken or tag.shape is not Shape.BEGIN:
            return False
        is_call = tag.element is Element.INVOKE and self._calls.declared(tag.name) is not None
        return is_call or tag.element is Element.SECTION

    def _track(self, lexeme: Lexeme) -> None:
        """Shows the code tracker what it has to pass by, a tag or what is in one."""
        self._code.feed(raw_text(lexeme))
        if isinstance(lexeme, Tag) and lexeme.ends(Element.SECTION):
            self._code.meet_section_end()

    def _begin_block(self, tag: Tag, *, tracked: bool) -> None:
        self._code.meet_tag()
        begins_call = tag.begins(Element.SECTION) or tag.begins(Element.INVOKE)
        if not begins_call and not tag.broken:
            self._show(self._take_tail())
        code = copy.copy(self._code) if self._code.in_code else None
        plain = tag.element is not Element.THINK and not tag.marked
        block = self._block = Block(
            reasoning=self._reasoning.active,
            code=code,
            marked_quote=self._code.in_block_quote or self._code.after_quote_mark,
            prose=not self._code.line_blank and not self._in_section,
            plain=plain,
            raw=[self._take_tail()],
            quoted_lines=QuotedLines() if self._code.in_block_quote else None,
            sectioned=self._in_section,
        )
        if code is not None and not tracked:
            self._track(tag)
        self._take_tag(block, tag)

    def _feed_block(self, block: Block, lexeme: Lexeme, *, tracked: bool) -> None:
        if block.coded and not tracked and not self._follow_code(block, lexeme):
            return
        if block.later is not None:
            block.later.append(lexeme)
        elif isinstance(lexeme, Tag) and lexeme.ends(Element.THINK) and self._reasoning.active:
            self._end_reasoning_behind(block, lexeme)
        elif block.reader is not None:
            self._feed_invoke(block, block.reader, lexeme)
        elif isinstance(lexeme, str):
            self._feed_gap(block, lexeme)
        else:
            self._feed_tag(block, lexeme)

    def _follow_code(self, block: Block, lexeme: Lexeme) -> bool:
        """Returns whether the lexeme is part of the block; where its code ends, it is quoted."""
        if not isinstance(lexeme, str) or isinstance(lexeme, Control):
            self._code.meet_tag()
            if self._code.in_code:
                self._track(lexeme)
                return True
            rest = lexeme
        else:
            length = self._code.feed_while_in_code(lexeme)
            if self._code.in_code:
                return True
            if self._code.given_up:
                self._again([None, *filter(None, [lexeme[length:]])])
                self._feed_block(block, lexeme[:length], tracked=True)
                return False
            (block.keep if block.later is None else block.later.append)(lexeme[:length])
            rest = lexeme[length:]
        self._reject(block)
        self._again([rest] if rest else [])
        return False

    def _uncode(self, block: Block) -> None:
        """The code around a block does not end: it was none."""
        if block.code is None:
            return
        self._code, block.code = block.code.without_code(), None
        later, block.later = block.later or [], None
        self._open(block)
        self._again(later)

    def _feed_gap(self, block: Block, lexeme: Lexeme) -> None:
        """What no tag of a block is, outside its invokes: white space, or the end of the block."""
        text = raw_text(lexeme)
        if block.behind_tag and text.startswith(">"):
            rest = text.lstrip(">")  # a doubled one
            block.keep(text[: len(text) - len(rest)])
            block.behind_tag = not rest
            if not rest:
                return
            text = lexeme = rest
        solid = text.lstrip(TAG_DEBRIS if block.sectioned else None)
        block.inline = block.inline and "\n" not in text[: len(text) - len(solid)]
        if not solid:
            block.gap.append(text)
            block.keep(text)
            self._open(block)
        elif block.certain:
            gap = "".join(block.gap)
            self._commit(block)
            self._again([gap + text] if isinstance(lexeme, str) else [gap, lexeme])
        elif block.coded and block.made_calls and not block.reasoning:
            block.later = [lexeme]
        else:
            self._reject(block)
            self._again([lexeme], tracked=block.coded)

    def _feed_tag(self, block: Block, tag: Tag) -> None:
        if block.plain:
            self._feed_plain(block, tag)
        elif _is_text(tag, block):
            self._feed_gap(block, tag.raw if tag.element is Element.THINK else tag)
        else:
            self._take_tag(block, tag)

    def _feed_plain(self, block: Block, tag: Tag) -> None:
        """A tag follows those without marker that a block began with: it shows what they are."""
        if tag.marked and tag.begins(Element.INVOKE) and block.plain_invoke is None:
            block.plain = False
            self._take_tag(block, tag)
        elif tag.marked and block.plain_invoke is not None and tag.element is not Element.THINK:
            block.plain = False
            block.reader = InvokeReader(block.plain_invoke, self._calls, sectioned=block.sectioned)
            self._feed_invoke(block, block.reader, tag)
        elif block.plain_invoke is None and self._may_begin(tag):
            self._take_tag(block, tag)
        else:
            self._reject(block)
            self._again([tag], tracked=block.coded)

    def _take_tag(self, block: Block, tag: Tag) -> None:
        block.gap.clear()
        if tag.begins(Element.INVOKE) or tag.begins(Element.SECTION):
            block.trial = True
            if block.raw is None and block.reasoning:
                block.raw = []
        block.keep(tag)
        block.inline = block.inline and "\n" not in tag.raw
        if tag.element is Element.SECTION:
            block.sectioned = tag.begins(Element.SECTION)
        elif block.plain:
            block.plain_invoke = tag
        elif tag.begins(Element.INVOKE):
            block.reader = InvokeReader(tag, self._calls, sectioned=block.sectioned)
        elif tag.element is not Element.THINK:
            self._give(block, Problem(Flaw.STRAY, "", f"a tag of nothing: {tag.raw!r}"))
        self._open(block)

    def _feed_invoke(self, block: Block, reader: InvokeReader, lexeme: Lexeme) -> None:
        block.keep(lexeme)
        outcome = reader.feed(lexeme)
        block.line_break = block.line_break or "\n" in raw_text(lexeme)
        if outcome is None and reader.waits:
            return
        if not reader.closed and (outcome is None or outcome.ending is Ending.COMPLETE):
            block.inline = block.inline and not block.line_break
        block.line_break = False
        if outcome is None:
            self._open(block)
        else:
            self._end_invoke(block, outcome)

    def _end_invoke(self, block: Block, outcome: Outcome) -> None:
        block.reader = None
        block.give_back(len(outcome.rest))
        name = outcome.invoke.name or ""
        if outcome.ending is Ending.COMPLETE:
            self._read(block, outcome.invoke)
        elif outcome.ending is Ending.ABANDONED:
            self._give(block, Problem(Flaw.MALFORMED, name, outcome.invoke.flaw))
            self._astray = self._astray or outcome.in_text
        else:
            self._give(block, Problem(Flaw.INCOMPLETE, name, "the response ended within it"))
        self._open(block)
        rest, replays = outcome.rest, self._replays
        if outcome.swallowed and replays == _MAX_REPLAYS:
            rest = self._text_of(rest[: outcome.swallowed]) + rest[outcome.swallowed :]
        elif outcome.swallowed:
            replays += 1
        self._again(rest, tracked=block.coded, replays=replays)

    def _text_of(self, lexemes: list[Lexeme]) -> list[Lexeme]:
        """Returns what is text in a value that was none."""
        self._say(Problem(Flaw.MALFORMED, "", "too many tags without end before a section"))
        texts = [raw_text(each) for each in lexemes if isinstance(each, str) or not each.marked]
        return ["".join(texts)] if any(texts) else []

    def _read(self, block: Block, invoke: Invoke) -> None:
        certain = block.sectioned and not block.quoted and not block.reasoning
        self._give(block, self._calls.read(invoke, certain=certain))

    def _give(self, block: Block, result: Result) -> None:
        if block.raw is None:
            self._make(result)
        else:
            block.results.append(result)

    def _make(self, result: Result) -> None:
        tried = not isinstance(result, Problem) or result.flaw is not Flaw.STRAY
        if tried and not self._reasoning.active:
            self._drop_drafts()
        if isinstance(result, Problem):
            self._say(result)
            return
        name, arguments = result
        if self._astray:
            self._say(Problem(Flaw.QUOTED, name, "behind a call that broke off within its values"))
            return
        self._reasoning.saw(name)
        self._say(Call(self._made, make_call(self._request_id, self._made, name, arguments)))
        self._made += 1

    def _drop_drafts(self) -> None:
        """What the reasoning ended with was tried out: it goes on, or the content calls itself."""
        drafts, self._drafts = self._drafts, []
        text, self._draft_text = self._draft_text, ""
        if drafts:
            self._show(text, reasoning=True)
            self._say_quoted(drafts, Flaw.DRAFT)

    def _say_quoted(self, results: list[Result], flaw: Flaw) -> None:
        for result in results:
            if not isinstance(result, Problem):
                self._say(Problem(flaw, result[0], "a call that was written and not made"))

    # Verdicts

    def _open(self, block: Block) -> None:
        """Makes the calls of a block that has become certain to be markup."""
        if block.certain and block.raw is not None:
            results, block.results, block.raw = block.results, [], None
            for result in results:
                self._make(result)

    def _commit(self, block: Block) -> None:
        """The block is over, and it was markup."""
        self._block, self._in_section = None, block.sectioned
        for result in block.results:
            self._make(result)

    def _reject(self, block: Block) -> None:
        """The block is over, and it was a quotation."""
        self._block = None
        if block.reader is not None and block.reader.closed:
            self._read(block, block.reader.invoke)
        text = block.text()
        if text:
            self._feed_text(text, tracked=block.coded)
        self._say_quoted(block.results, Flaw.DRAFT if block.reasoning else Flaw.QUOTED)

    def _end_reasoning_behind(self, block: Block, tag: Tag) -> None:
        if block.reader is not None and block.reader.closed:
            self._again([tag])
            self._end_invoke(block, block.reader.finish(cut=False))
            return
        quoted = block.quoted and (not block.made_calls or block.quoted_whole)
        if block.reader is not None or block.plain or quoted:
            self._reject(block)
        elif block.made_calls:
            self._block = None
            self._drafts += block.results
            self._draft_text += block.text()
        else:
            self._commit(block)
        self._end_reasoning()

    def _finish_block(self, block: Block, *, cut: bool) -> None:
        if block.coded:
            self._code.meet_tag()
        code_ended = block.coded and not self._code.in_code
        if block.reader is not None and not code_ended:
            self._end_invoke(block, block.reader.finish(cut=cut))
        elif block.later is not None and not code_ended and not cut:
            self._uncode(block)
        elif (
            block.later is not None
            or block.plain
            or code_ended
            or (block.quoted and (cut or not block.made_calls or block.quoted_whole))
        ):
            self._reject(block)
        else:
            self._commit(block)


def _is_text(tag: Tag, block: Block) -> bool:
    """Whether a tag in a block, outside its invokes, is none of its tags."""
    if tag.element is Element.THINK:
        return tag.shape is not Shape.END
    belongs = block.sectioned or (block.trial and tag.shape is Shape.END)
    return not tag.marked and (tag.broken or not belongs)
