"""A draft's row computes, bit for bit, what a step of its own would; wrong drafts leave nothing.

Four requests of the same tokens run side by side: with right drafts, wrong ones, a random mixture,
and none. All must give the logits of the plain program, and the draft logits of the one without.
"""

import numpy as np
import pytest

from tests.dsv4 import drafting, golden

ROWS, PAGES, LENGTH = 8, 3, 275
MODES = ("right", "wrong", "mixed", "none")
FORMATS = {"f32": {}, "bf16-fp8": {"kv_format": "bf16", "index_k_format": "fp8"}}


@pytest.fixture(scope="module")
def model():
    return golden.random_model(drafting.CONFIG, mtp=True)


class Rows:
    """The arrays of one step, filled row by row."""

    def __init__(self):
        self.tokens, self.positions, self.slots = (np.zeros(ROWS, np.int32) for _ in range(3))
        self.tables = np.zeros((ROWS, PAGES), np.int32)
        self.used = 0

    def add(self, token, position, pages, slot):
        row = self.used
        self.tokens[row], self.positions[row], self.slots[row] = token, position, slot
        self.tables[row] = pages
        self.used += 1
        return row

    def arrays(self):
        return self.tokens, self.positions, self.tables, self.slots


def create(model, **changes):
    spec, cache = golden.create(
        model.config, num_pages=1 + len(MODES) * PAGES, num_slots=6, page_tokens=128, **changes
    )
    return spec, golden.poisoned(cache)


def plain_logits(model, tokens, **formats):
    """One request, token by token, through the plain program."""
    spec, cache = create(model, **formats)
    step, found = model.decode_step(spec), []
    for position, token in enumerate(tokens):
        rows = Rows()
        rows.add(token, position, [5, 2, 9], 4)
        cache, logits = step(model.leaves, cache, *rows.arrays())
        found.append(np.asarray(logits[0]))
    return found


def drafted_logits(model, tokens, rng, **formats):
    """Mode -> position -> (logits, draft logits), each request at its own pace."""
    spec, cache = create(model, draft_tokens=1, **formats)
    step = drafting.decode_program(model, spec)
    pages = rng.permutation(np.arange(1, 1 + len(MODES) * PAGES)).reshape(len(MODES), PAGES)
    slots = rng.permutation(np.arange(1, 6))[: len(MODES)]
    found = {mode: [] for mode in MODES}
    while min(map(len, found.values())) < len(tokens):
        rows, of_mode = Rows(), {}
        for index in rng.permutation(len(MODES)):
            mode, position = MODES[index], len(found[MODES[index]])
            if position == len(tokens):
                continue
            first = rows.add(tokens[position], position, pages[index], slots[index])
            is_right = mode == "right" or (mode == "mixed" and rng.random() < 0.5)
            of_mode[mode] = [first]
            if mode != "none" and position + 1 < len(tokens):
                token = tokens[position + 1] if is_right else (tokens[position + 1] + 7) % 384
                row = rows.add(token, position + 1, pages[index], slots[index])
                of_mode[mode] += [row] if is_right else []
        cache, logits, _, drafts = step(model.leaves, cache, *rows.arrays())
        logits, drafts = np.asarray(logits), np.asarray(drafts)
        for mode, proven in of_mode.items():
            found[mode] += [(logits[row], drafts[row]) for row in proven]
    return found


@pytest.mark.parametrize("formats", [FORMATS["f32"], FORMATS["bf16-fp8"]])
@pytest.mark.soak
def test_rows_with_drafts_equal_steps_of_their_own(model, formats):
    check_drafts(model, formats)


@pytest.mark.soak
def test_rows_with_drafts_equal_steps_of_their_own_with_many_packed_experts():
    check_drafts(golden.packed_experts_model(drafting.CONFIG, mtp=True), {})


def check_drafts(model, formats):
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, 384, LENGTH)
    wanted = plain_logits(model, tokens, **formats)
    found = drafted_logits(model, tokens, rng, **formats)
    for position in range(LENGTH):
        _, draft = found["none"][position]
        assert np.isfinite(draft).all()
        for mode in MODES:
            where = f"{mode} at {position}"
            np.testing.assert_array_equal(found[mode][position][0], wanted[position], where)
            np.testing.assert_array_equal(found[mode][position][1], draft, where)
