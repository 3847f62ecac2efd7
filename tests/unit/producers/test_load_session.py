"""What the sessions of a load ask."""

from collections import Counter
from itertools import islice

from headrace.producers.load_session import ShapedSession, shaped_sessions
from headrace.producers.load_shapes import Shape
from headrace.schemas.request import validate_request


def first_text(session: ShapedSession) -> str:
    return str(session.body(1)["messages"][-1]["content"])


def test_a_session_is_a_conversation() -> None:
    """The system message comes first and once; each turn holds its own message only."""
    session = ShapedSession(
        "s",
        Shape(turns=3.0, system="Be brief.", stop=["x"], request={"top_p": 0.5}),
        seed=1,
        index=4,
    )
    bodies = [session.body(turn) for turn in (1, 2, 3)]
    assert [[m["role"] for m in body["messages"]] for body in bodies] == [
        ["system", "user"],
        ["user"],
        ["user"],
    ]
    assert len({body["messages"][-1]["content"] for body in bodies}) == 3
    for body in bodies:
        assert (body["top_p"], body["stop"], body["context"]) == (0.5, ["x"], "append")
        validate_request(body)


def test_short_prompts_differ_too() -> None:
    """A cache that keeps prefixes must not answer for prompts that users would not share."""
    sessions = islice(shaped_sessions([Shape(prompt_words=1.0)], seed=1, run_id="r"), 300)
    assert len({first_text(session) for session in sessions}) == 300


def test_a_shared_prefix_is_shared() -> None:
    """By all sessions of the shape, before what differs."""
    shape = Shape(prompt_words=3.0, shared_prefix_words=40)
    one, other = (first_text(ShapedSession("s", shape, seed=1, index=i)) for i in (0, 1))
    assert one != other
    assert one.split()[:40] == other.split()[:40]


def test_texts_are_asked_as_they_stand() -> None:
    """Nothing is put around them."""
    shape = Shape(prompt_texts=["Hello?", "And you?"])
    found = {first_text(ShapedSession("s", shape, seed=1, index=i)) for i in range(40)}
    assert found == {"Hello?", "And you?"}


def test_shapes_come_by_weight() -> None:
    """Three to one."""
    shapes = [Shape(turns=1.0, weight=3), Shape(turns=2.0, weight=1)]
    turns = Counter(s.num_turns for s in islice(shaped_sessions(shapes, seed=1, run_id="r"), 2000))
    assert 1400 < turns[1] < 1600
