"""Redis keys: no two things share one, whatever clients name them."""

import itertools

from headrace.schemas.keys import Keys


def test_no_two_names_share_a_key() -> None:
    """Separators and braces in a tenant or id are quoted."""
    names = ["a", "b", "a/b", "/", "{a}", "}", ":", "%2F", "é", "\x00", " "]
    pairs = list(itertools.product(names, names))
    keys = Keys("p")
    found = {make(*pair) for make in (keys.journal, keys.cancel, keys.session) for pair in pairs}
    assert 3 * len(pairs) == len(found)


def test_the_hash_tag_is_the_tenant_and_the_name() -> None:
    """Exactly one pair of braces, so one cluster slot."""
    key = Keys("p").session("t{", "}s")
    assert key == "p:session:{t%7B/%7Ds}"
