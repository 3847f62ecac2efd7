"""Comparing answers: whatever the tokens are, the first difference is found, and only there."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.replaying.comparison import EXACT, Outcome, compare
from tests.replayed_answers import answer, request, texts_of

GREEDY = request(temperature=0)
IDS = st.lists(st.integers(1, 3), max_size=8)


def ended(ids: list[int]) -> list[int]:
    return [*ids, 0]


@given(IDS, st.booleans(), st.booleans())
def test_an_answer_is_exactly_itself(ids: list[int], with_ids: bool, others_ids: bool) -> None:
    """With or without tokens on either side."""
    recorded = answer(ended(ids), with_ids=with_ids)
    assert compare(GREEDY, recorded, answer(ended(ids), with_ids=others_ids), texts_of) == EXACT


@given(IDS, IDS, st.booleans())
def test_the_first_difference_is_the_first(
    one: list[int], other: list[int], with_ids: bool
) -> None:
    """By text and by tokens alike, since each token here has a text of its own."""
    found = compare(GREEDY, answer(ended(one), with_ids=with_ids), answer(ended(other)), texts_of)
    if one == other:
        assert found == EXACT
        return
    assert found.outcome is Outcome.DIFFERENT
    assert found.parting is not None
    token = found.parting.token
    assert ended(one)[:token] == ended(other)[:token]
    assert ended(one)[token : token + 1] != ended(other)[token : token + 1]


@given(IDS, st.data(), st.booleans())
def test_a_beginning_that_was_cancelled_is_exact(
    ids: list[int], data: st.DataObject, with_ids: bool
) -> None:
    """Wherever it was cut."""
    length = data.draw(st.integers(0, len(ids)))
    recorded = answer(ids[:length], reason="cancelled", with_ids=with_ids)
    found = compare(GREEDY, recorded, answer(ended(ids)), texts_of)
    assert found.outcome is (Outcome.EXACT if length else Outcome.NOT_COMPARABLE)
