"""Every event in every state has an outcome, and docs/protocol.md shows what the code does."""

from __future__ import annotations

import enum
from pathlib import Path

import pytest

from disagg.errors import IllegalTransition, InvalidField
from disagg.protocol import receiving, sending
from disagg.protocol.table import Table, Verdict
from tests.disagg.exploration.document import PAGE, TABLES, blocks_of


class Door(enum.Enum):
    OPEN = "open"
    SHUT = "shut"


class Push(enum.Enum):
    PUSH = "push"
    PULL = "pull"


def doors(**changes):
    parts = {
        "moves": {(Door.OPEN, Push.PUSH): Door.SHUT},
        "ignored": {(Door.SHUT, Push.PUSH): "shut already"},
        "refused": {(Door.OPEN, Push.PULL): "a shut door"},
    }
    return Table("door", Door, Push, **(parts | changes))


@pytest.mark.parametrize("name", TABLES)
def test_every_event_in_every_state_has_an_outcome(name):
    table = TABLES[name]
    for state, event in table.pairs():
        outcome = table.outcome(state, event)
        if outcome.verdict is Verdict.MOVE:
            assert table.after(state, event) is outcome.after
        elif outcome.verdict is Verdict.IGNORE:
            assert table.after(state, event) is state and outcome.why
        elif outcome.verdict is Verdict.REFUSE:
            with pytest.raises(InvalidField, match="seen 7, expected"):
                table.after(state, event, "field", 7)
        else:
            assert event not in table.from_peer
            with pytest.raises(IllegalTransition, match=f"'{event.value}' is not allowed"):
                table.after(state, event)


def test_a_table_says_what_happens():
    table = doors()
    assert table.after(Door.OPEN, Push.PUSH) is Door.SHUT
    assert table.after(Door.SHUT, Push.PUSH) is Door.SHUT
    with pytest.raises(InvalidField, match="pull: seen None, expected a shut door"):
        table.after(Door.OPEN, Push.PULL)
    with pytest.raises(IllegalTransition, match="door: event 'pull' is not allowed in .*'shut'"):
        table.after(Door.SHUT, Push.PULL)
    assert table.render().splitlines()[2:] == [
        "| **open** | shut | refused |",
        "| **shut** | (shut already) |  |",
    ]
    assert table.mermaid().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> open",
        "    open --> shut: push",
        "    shut --> [*]",
    ]


def test_a_table_with_two_outcomes_or_none_for_a_peers_event_is_refused():
    with pytest.raises(ValueError, match="got two outcomes"):
        doors(refused={(Door.OPEN, Push.PUSH): "x"})
    with pytest.raises(ValueError, match="got none, expected an outcome"):
        doors(from_peer=(Push.PULL,))


def test_memory_is_held_in_every_state_in_which_a_write_may_read_it():
    assert sending.WRITE_PENDING <= sending.HOLDS_MEMORY
    assert not sending.ACKNOWLEDGED & sending.UNPROVEN
    silent = {sending.SlabState.NOT_POSTED, sending.SlabState.ACKED}
    final = {s for s in sending.SlabState if s not in sending.HOLDS_MEMORY}
    assert {s for s in final if s not in sending.UNPROVEN} == silent | {
        sending.SlabState.PLANNED, sending.SlabState.ASKED, sending.SlabState.GRANTED,
    }  # fmt: skip
    assert receiving.READING.isdisjoint(receiving.OVER)


@pytest.mark.parametrize("name", TABLES)
def test_the_document_shows_the_tables_of_the_code(name):
    text = Path(PAGE).read_text()
    for block in blocks_of(name):
        assert block in text, "run `python -m tests.disagg.exploration.document`"
