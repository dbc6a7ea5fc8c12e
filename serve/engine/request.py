"""What a request is, and what an engine answers.

Owns the validation of everything a client may set. Every rule violated raises `InvalidField` with
the field, the value seen and the value expected. Knows no JAX, no gRPC and no transfer.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from disagg.errors import InvalidField
from disagg.transfer_log import TransferRecord
from dsv4.text.chat.messages import Tool
from dsv4.text.dsml.calls import ToolChoice
from dsv4.text.dsml.events import Call, Problem

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_REQUEST_ID_CHARS = 128
_REQUEST_ID = re.compile(r"[\x21-\x7e]+")


class FinishReason(enum.Enum):
    """Why a request ended well. Every other end is an error with a status code."""

    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens, or the context limit of the engine
    TOOL_CALLS = "tool_calls"  # of a chat: as STOP, and the answer calls tools


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when generation ends.

    Attributes:
      temperature: 0 is greedy; otherwise logits are divided by it. Within [0, 100].
      top_k: keep the k most likely tokens; 0 keeps all.
      top_p: keep the smallest set of most likely tokens whose probability reaches top_p. In (0, 1].
      seed: 64-bit; the same (seed, position) draws the same random number on every machine. None
        lets the engine derive one from the request id.
      max_tokens: upper bound of generated tokens, at least 1.
      stop: strings that end generation; they are not part of the text.
      stop_token_ids: tokens that end generation besides the end-of-sequence token.
      ignore_eos: go on after the end-of-sequence token.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def validate(self, vocab_size: int) -> None:
        """Raises InvalidField for the first field that is out of range."""
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 100.0):
            raise InvalidField.of("temperature", self.temperature, "a number in [0, 100]")
        if not 0 <= self.top_k < 2**31:
            raise InvalidField.of("top_k", self.top_k, "0 (all tokens) to 2**31 - 1")
        if not (math.isfinite(self.top_p) and 0.0 < self.top_p <= 1.0):
            raise InvalidField.of("top_p", self.top_p, "a number in (0, 1]")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise InvalidField.of("seed", self.seed, "an integer in [0, 2**64)")
        if self.max_tokens < 1:
            raise InvalidField.of("max_tokens", self.max_tokens, "at least 1")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidField.of(
                "stop", f"{len(self.stop)} strings", f"at most {MAX_STOP_STRINGS}"
            )
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
                raise InvalidField.of("stop", text[:40], f"1 to {MAX_STOP_STRING_CHARS} characters")
        for token in self.stop_token_ids:
            if not 0 <= token < vocab_size:
                raise InvalidField.of("stop_token_ids", token, f"ids in [0, {vocab_size})")


@dataclass(frozen=True)
class ChatFormat:
    """How the tokens of a chat's answer are read.

    Attributes:
      thinking: the prompt ends within the reasoning.
      tools: those that may be called.
      tool_choice: whether one of them must be called.
    """

    thinking: bool
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)


@dataclass(frozen=True)
class Request:
    """One sequence to generate.

    Attributes:
      request_id: unique among the requests in flight at this engine.
      token_ids: the prompt, already tokenised.
      sampling: see SamplingParams.
      deadline: absolute `time.monotonic()` seconds after which the request fails, or None.
      chat: set if the prompt is a conversation; its answer is then read as reasoning, content and
        tool calls, and stop strings are looked for in the content.
      page_digests: the completion carries digests of the pages that the request filled.
    """

    request_id: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    deadline: float | None = None
    chat: ChatFormat | None = None
    page_digests: bool = False

    def validate(self, *, vocab_size: int, max_context: int) -> None:
        """Raises InvalidField unless the engine can serve the request.

        Args:
          vocab_size: ids must be below it.
          max_context: prompt and generated tokens together must fit; a prompt leaves room for at
            least one generated token. `max_tokens` beyond the room ends with LENGTH, not an error.
        """
        if len(self.request_id) > MAX_REQUEST_ID_CHARS or not _REQUEST_ID.fullmatch(
            self.request_id
        ):
            raise InvalidField.of(
                "request_id",
                self.request_id[:40],
                f"1 to {MAX_REQUEST_ID_CHARS} printable ASCII characters without spaces",
            )
        if not self.token_ids:
            raise InvalidField.of("prompt", "0 tokens", "at least 1 token")
        if len(self.token_ids) >= max_context:
            raise InvalidField.of(
                "prompt",
                f"{len(self.token_ids)} tokens",
                f"at most {max_context - 1} tokens (context limit {max_context})",
            )
        for position, token in enumerate(self.token_ids):
            if not 0 <= token < vocab_size:
                raise InvalidField.of(
                    "token_ids", f"{token} at position {position}", f"ids in [0, {vocab_size})"
                )
        self.sampling.validate(vocab_size)


def check_prompt_text(text: str, *, longest_token: int, max_context: int) -> None:
    """Raises InvalidField for text too long for the context however it is tokenised.

    It costs little, unlike finding that out by tokenising.

    Args:
      text: of the prompt.
      longest_token: bytes of the longest token.
      max_context: as in `Request.validate`.
    """
    num_bytes, limit = len(text.encode("utf-8", "surrogatepass")), (max_context - 1) * longest_token
    if num_bytes > limit:
        raise InvalidField.of(
            "prompt",
            f"{num_bytes} bytes of text, at least {-(-num_bytes // longest_token)} tokens",
            f"at most {max_context - 1} tokens (context limit {max_context})",
        )


@dataclass(frozen=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Timing:
    """Seconds, measured on the engine's monotonic clock.

    Attributes:
      queue: from arrival until pages and a slot were reserved.
      prefill: compute of all prefill chunks (at the prefill process when disaggregated).
      transfer: from the transfer's start to the last admitted slab; 0 in one process.
      time_to_first_token: from arrival to the first token handed to the client.
      total: from arrival to the end.
    """

    queue: float = 0.0
    prefill: float = 0.0
    transfer: float = 0.0
    time_to_first_token: float = 0.0
    total: float = 0.0


@dataclass(frozen=True)
class TransferStats:
    """What the hand-over of one request moved and proved."""

    prefill: str = ""
    attempts: int = 0
    pages: int = 0
    slabs: int = 0
    bytes_by_component: dict[str, int] = field(default_factory=dict)
    fence_rows_verified: int = 0
    fence_rows_acknowledged: int = 0
    wire_seconds: float = 0.0
    verify_seconds: float = 0.0
    admit_seconds: float = 0.0


@dataclass(frozen=True)
class Delta:
    """New tokens and what they completed (it may lag behind: UTF-8, stop strings, tool calls).

    Attributes:
      sequence: 0, 1, 2, ...
      token_ids: new tokens.
      text: of the answer; of a chat's answer its content.
      reasoning, tool_calls, problems: only of a chat. Calls are complete; a problem is a call that
        could not be read.
    """

    sequence: int
    token_ids: tuple[int, ...]
    text: str
    reasoning: str = ""
    tool_calls: tuple[Call, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Completion:
    """The one terminal answer of a request that ended well.

    `matched_stop` is the stop string or token id that ended it, None for LENGTH.
    `sampling` are the parameters in force, seed included. `page_digests` are those of all pages
    that tokens filled, by ordinal of the page and component, if the request asked for them.
    """

    finish_reason: FinishReason
    matched_stop: str | int | None
    usage: Usage
    timing: Timing
    sampling: SamplingParams
    transfer: TransferStats | None = None
    page_digests: dict[tuple[int, str], int] | None = None


@dataclass(frozen=True)
class EngineStatus:
    """A snapshot for ServerInfo, health and tests. Counts exclude the scratch page and slot."""

    role: str
    ready: bool
    draining: bool
    model_fingerprint: str
    layout_digest: str
    max_context: int
    vocab_size: int
    pages_total: int
    pages_used: int
    slots_total: int
    slots_used: int
    requests_waiting: int
    requests_running: int
    requests_finished: int
    requests_failed: int
    drafts_proposed: int  # draft tokens that were verified, since start-up
    drafts_accepted: int  # those of them that were the token drawn
    pages_swept: int  # pages whose bytes were compared with earlier digests of them
    pages_damaged: int  # those of them that had changed
    leases: dict[str, int]  # landing slots by state at decode, outbox slabs by state at prefill
    peers: dict[str, str]  # address -> state of the link
    health: dict[str, bool]  # grpc health service name -> serving
    settings: dict[str, str]  # effective settings, for humans
    device: str  # what computes, as it calls itself


class Engine(Protocol):
    """What a front end needs from an engine. All methods run on the event loop."""

    async def start(self) -> None:
        """Loads, compiles and warms up; returns when requests can be served."""
        ...

    async def drain(self) -> None:
        """Refuses new requests (UNAVAILABLE) and returns when those in flight have ended."""
        ...

    async def stop(self) -> None:
        """Aborts what is left and releases everything."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[Delta | Completion]:
        """Yields deltas, then one Completion. Closing the iterator cancels the request.

        Raises:
          DisaggError: with the status code and a message fit for the client.
        """
        ...

    def status(self) -> EngineStatus: ...

    def transfers(self, wanted: str) -> list[TransferRecord]:
        """Hand-overs of a transfer id, or of a request id where it is known, oldest first."""
        ...
