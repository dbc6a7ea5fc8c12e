"""The RPCs `Generate` and `Chat`: what each makes of its message, and of the engine's answer."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import grpc

from dsv4.text.tokenizer import Tokenizer
from serve.api import convert
from serve.api.conversation import read_conversation
from serve.api.front_end import FrontEnd
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.proto.dsv4.generate.v1 import generate_pb2_grpc as pb_grpc
from serve.api.request_stream import stream_request
from serve.api.status import Refused
from serve.engine.request import Request, check_prompt_text

INLINE_ENCODE_CHARS = 4096  # longer texts are tokenised on a thread


class GenerateService(pb_grpc.GenerateServicer):
    """Serves `dsv4.generate.v1.Generate`; generate.proto is the contract."""

    def __init__(self, front: FrontEnd) -> None:
        self._front = front

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Streams one request."""

        async def prepare(request_id: str, deadline: float | None) -> Request:
            prompt = convert.prompt_of(request)
            sampling = convert.sampling_of(request.sampling)
            if isinstance(prompt, str):
                prompt = await self._encode(prompt)
            return Request(
                request_id, prompt, sampling, deadline, page_digests=request.page_digests
            )

        await stream_request(self._front, request, context, prepare, convert.event_to_proto)

    async def Chat(
        self, request: pb.ChatRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Streams the answer to one conversation."""

        async def prepare(request_id: str, deadline: float | None) -> Request:
            convert.refuse_unknown(request, "ChatRequest")
            sampling = convert.sampling_of(request.sampling)
            text, settings = request.conversation, self._front.chat
            tokenizer = self._tokenizer("conversation", "FAILED_PRECONDITION")
            context_limit = self._front.engine.status().max_context
            read = functools.partial(read_conversation, text, tokenizer, settings, context_limit)
            prompt = read() if len(text) <= INLINE_ENCODE_CHARS else await asyncio.to_thread(read)
            return Request(
                request_id,
                prompt.token_ids,
                sampling,
                deadline,
                prompt.format,
                page_digests=request.page_digests,
            )

        await stream_request(self._front, request, context, prepare, convert.chat_event_to_proto)

    async def _encode(self, text: str) -> tuple[int, ...]:
        """Text behind a begin-of-sequence token."""
        tokenizer = self._tokenizer("text", "INVALID_ARGUMENT")
        if not text:
            raise Refused("INVALID_ARGUMENT", "text: seen '', expected 1 character", "text")
        if len(text) <= INLINE_ENCODE_CHARS:
            ids = tokenizer.encode(text)
        else:
            max_context = self._front.engine.status().max_context
            check_prompt_text(text, longest_token=tokenizer.longest_token, max_context=max_context)
            ids = await asyncio.to_thread(tokenizer.encode, text)
        return (tokenizer.bos_id, *ids)

    def _tokenizer(self, field: str, code: str) -> Tokenizer:
        if self._front.tokenizer is None:
            raise Refused(code, f"{field}: this model has no tokenizer", field)
        return self._front.tokenizer
