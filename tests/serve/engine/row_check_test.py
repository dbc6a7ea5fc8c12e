"""Programs whose rows are not independent are found before they serve."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from dsv4.cache import cache_spec
from dsv4.model import Embedding
from serve import roles
from serve.config import ConfigError
from serve.engine.row_check import DependentRows, check_rows
from serve.engine.rows import Drawn, NonFiniteLogits
from serve.engine.runner import Runner
from serve.progress import create_progress
from tests.dsv4 import golden

CONFIG = dataclasses.replace(golden.SMALL, num_hidden_layers=1, compress_ratios=(0,))
ROWS = 6


class Device:
    """Draws from all that a request's slot has taken in; `wrong_row` is told its number too."""

    def __init__(self, wrong_row: int | None = None, *, what="token"):
        self.wrong_row, self.what = wrong_row, what
        self.memory = np.zeros((ROWS + 1, 4), np.int64)
        self.used: set[int] = set()

    def decode(self, rows, width):
        assert len(rows) == ROWS
        found = []
        for number, row in enumerate(rows):
            if row.slot:
                assert row.pages == (row.slot,)
                self.used.add(number)
            wrong = int(number == self.wrong_row)
            self.memory[row.slot, row.position] = row.token + (self.what == "cache") * wrong
            drawn = int(self.memory[row.slot, : row.position + 1].sum())
            found.append(
                Drawn(
                    drawn + (self.what == "token") * wrong, drawn + (self.what == "draft") * wrong
                )
            )
        return found

    def check(self, requests=ROWS):
        def read_back(count):
            return {"ring": np.ascontiguousarray(self.memory[1 : count + 1]).view(np.uint8)}

        check_rows(self.decode, read_back, rows=ROWS, requests=requests, vocab_size=90, width=8)


@pytest.mark.parametrize("requests", [1, 2, 3, 5, ROWS])
def test_rows_that_see_their_request_alone_pass(requests):
    Device().check(requests)


@pytest.mark.parametrize("what", ["token", "draft", "cache"])
@pytest.mark.parametrize("wrong_row", range(ROWS))
def test_any_one_row_that_differs_in_anything_is_found(wrong_row, what):
    with pytest.raises(DependentRows, match=rf"decode_rows {ROWS} .* promise would not hold"):
        Device(wrong_row, what=what).check()


def test_few_requests_try_rows_for_their_drafts_too():
    device = Device()
    device.check(3)
    assert device.used == set(range(6))


def test_logits_that_are_not_finite_are_no_matter_of_rows():
    class Broken(Device):
        def decode(self, rows, width):
            return [NonFiniteLogits("decode") for _ in super().decode(rows, width)]

    Broken().check()


def build(decode_rows: int) -> Runner:
    model = golden.random_model(CONFIG)
    return Runner(
        CONFIG,
        model.model,
        cache_spec(CONFIG, page_tokens=128),
        num_pages=12,
        num_slots=10,
        chunk_tokens=128,
        decode_rows=decode_rows,
        buckets=(8,),
    )


def test_a_decode_engine_warms_up_on_a_cpu_in_place():
    runner = build(7)  # 7 rows, compiled as such, are not independent on a CPU
    roles._warm_up("decode", runner, create_progress())
    assert runner.moved_buffers() == []


def test_an_engine_whose_rows_differ_by_a_rounding_does_not_start(monkeypatch):
    plain = Embedding.__call__

    def mixed(self, tokens):
        rounding = 2.0**-22 * jnp.arange(len(tokens))[:, None]
        return plain(self, tokens) * (1 + rounding).astype(jnp.float32)

    monkeypatch.setattr(Embedding, "__call__", mixed)
    with pytest.raises(ConfigError, match=r"--decode-rows: seen 8, expected another .* this dev"):
        roles._warm_up("decode", build(8), create_progress())
