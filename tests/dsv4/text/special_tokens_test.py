"""The pattern finds the leftmost, then longest name."""

from dsv4.text import special_tokens


def test_the_longest_of_several_names_wins():
    assert special_tokens.pattern(["<a", "<ab>", "b"]).split("x<ab>b") == ["x", "<ab>", "", "b", ""]


def test_ids_are_distinct_and_inside_the_real_vocabulary():
    ids = list(special_tokens.OFFICIAL_IDS.values())
    assert len(set(ids)) == len(ids)
    assert max(ids) == 129279
