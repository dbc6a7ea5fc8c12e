"""Text in and out of the model: tokenizers, incremental decoding, stop strings. Knows no jax."""

from dsv4.text.bpe_tokenizer import BpeTokenizer
from dsv4.text.byte_tokenizer import ByteTokenizer
from dsv4.text.detokenizer import IncrementalDetokenizer
from dsv4.text.stop import StopMatcher, StopResult
from dsv4.text.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "BpeTokenizer",
    "ByteTokenizer",
    "IncrementalDetokenizer",
    "StopMatcher",
    "StopResult",
    "Tokenizer",
    "load_tokenizer",
]
