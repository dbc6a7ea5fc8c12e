"""The hand-over's decisions as pure, total state machines, without I/O, clocks, tasks or memory.

What may be granted, posted, read, acknowledged, admitted, freed or called stale is decided here and
in `disagg.lease`; the asyncio code around them carries out what they say. docs/protocol.md shows
their tables; tests/disagg/exploration runs both ends of them through every order of events.
"""
