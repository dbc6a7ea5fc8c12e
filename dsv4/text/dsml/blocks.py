"""A block: consecutive tags, with the invokes they make up and the white space between them.

A block is markup and never shown, unless it is a quotation; then all of it is text:
- it begins in a code block or in inline code that ends: as long as it has not, a block with calls
  and what follows it are held back, and code that never ends is none;
- it begins in a block quote or behind a quotation mark, and the response does not end with it, or
  all its lines are of the block quote;
- it stands within one line, with text on both sides;
- it is one tag that begins something, with text before it in its line, and text follows;
- it holds a call, in the reasoning, and the reasoning does not end with it: the model tries it out;
- it begins with the tag of a section or of a declared tool's invoke without marker, and what
  follows of a call has none either.
"""

from dataclasses import dataclass, field

from dsv4.text.dsml.events import Problem
from dsv4.text.dsml.invokes import InvokeReader
from dsv4.text.dsml.quoting import CodeTracker, QuotedLines
from dsv4.text.dsml.tags import Control, Lexeme, Shape, Tag, raw_text

# A call, as tool and JSON text of the arguments, or the reason why there is none.
Result = tuple[str, str] | Problem


@dataclass
class Block:
    """What is known of the block we are in.

    Attributes:
      reasoning: it began in the reasoning.
      marked_quote: it began in a block quote or behind a quotation mark.
      prose: it began with text before it in its line.
      inline: the same, and it has not left that line.
      plain: it began with a tag without marker, which has yet to prove itself.
      sectioned: we are in a section.
      trial: it holds what a call is made of.
      tags: how many it holds; 2 stands for more, and for one that ends something.
      code: the code around it before it began; None if there is none, or none any more.
      later: what follows it in code that has not ended; None as long as it goes on itself.
      reader: reads the invoke we are in.
      raw: what it consists of, as long as it may be a quotation; None afterwards.
      results: what its invokes gave while it may be a quotation.
      line_break: there is one in the end of the invoke we are in, which may prove not to be of it.
      gap: white space since the last tag, the end of `raw` if that is kept.
      quoted_lines: the block quote that it began in, None if it began in none.
      plain_invoke: the beginning of a call, as long as the block is `plain`.
      behind_tag: nothing stands behind its last tag.
    """

    reasoning: bool
    code: CodeTracker | None
    marked_quote: bool
    prose: bool
    plain: bool
    raw: list[Lexeme] | None
    inline: bool = field(init=False)
    sectioned: bool = False
    trial: bool = False
    tags: int = 0
    later: list[Lexeme] | None = None
    reader: InvokeReader | None = None
    results: list[Result] = field(default_factory=list)
    line_break: bool = False
    gap: list[str] = field(default_factory=list)
    quoted_lines: QuotedLines | None = None
    plain_invoke: Tag | None = None
    behind_tag: bool = False

    def __post_init__(self) -> None:
        self.inline = self.prose

    @property
    def coded(self) -> bool:
        """Whether it began in code, which has not ended since."""
        return self.code is not None

    @property
    def quoted(self) -> bool:
        """Whether it began in code, in a block quote or behind a quotation mark."""
        return self.coded or self.marked_quote

    @property
    def quoted_whole(self) -> bool:
        """Whether all its lines are of a block quote."""
        return self.quoted_lines is not None and self.quoted_lines.all

    @property
    def certain(self) -> bool:
        """Whether it is markup whatever follows."""
        tried = self.reasoning and self.trial
        mentioned = self.inline or (self.prose and self.tags < 2)
        return not (self.quoted or mentioned or self.plain or tried)

    @property
    def in_tags(self) -> bool:
        """Whether tags have to follow before it can be over."""
        reading = self.reader is not None and not self.reader.closed
        return self.later is None and (self.sectioned or reading)

    @property
    def takes_control(self) -> bool:
        """Whether a control token is part of it."""
        return self.reader is not None or self.later is not None

    @property
    def made_calls(self) -> bool:
        """Whether it holds calls that have not been made yet."""
        return any(not isinstance(result, Problem) for result in self.results)

    def keep(self, lexeme: Lexeme) -> None:
        """Takes a lexeme into the block."""
        self.behind_tag = isinstance(lexeme, Tag)
        if isinstance(lexeme, Tag):
            self.tags += 2 if lexeme.shape is Shape.END else 1
        if self.quoted_lines is not None and isinstance(lexeme, Tag):
            self.quoted_lines.meet_tag()
        elif self.quoted_lines is not None:
            self.quoted_lines.feed_text(raw_text(lexeme))
        if self.raw is not None:
            self.raw.append(lexeme)

    def give_back(self, count: int) -> None:
        """Takes the last `count` lexemes out of the block."""
        if self.raw is not None and count:
            del self.raw[-count:]

    def text(self) -> str:
        """Returns all of it, for a quotation."""
        lexemes = [*(self.raw or []), *(self.later or [])]
        return "".join(raw_text(each) for each in lexemes if not isinstance(each, Control))
