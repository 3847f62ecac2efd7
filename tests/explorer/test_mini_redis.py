"""The explorer's Redis answers the project's scripts as a real one does."""

import random
from collections.abc import Iterator

import pytest
from redis import Redis

from headrace.streams import lua
from tests.explorer.mini_redis import Argument, MiniRedis, sha_of

TOKENS = (5, 6, 7)
SOURCES = ("t/0/1/9", "t/0/2/9")
PACKED = (b"", b"\x01\x00\x00\x00", b"\x01\x00\x00\x00\x02\x00\x00\x00")
NUM_CALLS = 2_000


def calls(seed: int) -> Iterator[tuple[str, list[str], list[Argument]]]:
    """Scripts with arguments that meet each other."""
    rng = random.Random(seed)
    journals = [f"{{r{number}}}:journal" for number in range(2)]
    while True:
        some: list[tuple[str, list[str], list[Argument]]]
        token, source, packed = rng.choice(TOKENS), rng.choice(SOURCES), rng.choice(PACKED)
        kept, start, ending = rng.randrange(3), rng.choice((b"", b"{}")), rng.choice((b"", b"{}"))
        journal = rng.choice(journals)
        keys = [journal, journal.replace("journal", "cancel")]
        some = [
            (lua.OWN, ["fence"], [token]),
            (lua.CLAIM, keys, [token, source, "s", 60_000, rng.randrange(2), 0, "w"]),
            (
                lua.FLUSH,
                keys[:1],
                [
                    token,
                    source,
                    kept,
                    packed,
                    kept,
                    packed,
                    kept,
                    start,
                    b"",
                    ending,
                    60_000,
                    rng.choice(TOKENS),
                ],
            ),
            (
                lua.ADOPT,
                keys,
                [
                    token,
                    token,
                    source,
                    "s",
                    packed,
                    packed,
                    kept,
                    start,
                    b"",
                    ending,
                    60_000,
                    rng.randrange(2),
                    "w",
                ],
            ),
            (lua.CONFIRM, keys[:1], [token, source, kept, 60_000]),
            (lua.CANCEL, keys, ["s", 60_000]),
            (lua.IS_CANCELLED, keys[:1], [token]),
            (
                lua.STORE_SESSION,
                ["session"],
                [token, kept, rng.randrange(3), source, 1, b"[]", packed, 60_000, kept, 9],
            ),
            (lua.DELETE_SESSION, ["session"], [60_000, 0, kept, 9]),
            (lua.LOAD_SESSION, ["session"], [60_000]),
        ]
        yield from rng.sample(some, 3)


@pytest.mark.integration
@pytest.mark.timeout(60)
def test_answers_are_those_of_a_real_one(redis_url: str) -> None:
    """Call by call, and what stands there at the end."""
    mini = MiniRedis(lambda: 0)
    with Redis.from_url(redis_url) as real:
        real.flushdb()
        for number, (script, keys, args) in zip(range(NUM_CALLS), calls(3), strict=False):
            expected = real.eval(script, len(keys), *keys, *args)
            answer = mini.evalsha(sha_of(script), keys, args)
            assert _sorted(expected) == _sorted(answer), f"call {number}: {script} {keys} {args}"
        stored = {key: real.hgetall(key) for key in real.scan_iter() if real.type(key) == b"hash"}
    assert stored == {key: one for key, one in mini.values.items() if isinstance(one, dict)}


def _sorted(answer: object) -> object:
    """Fields of a hash come in any order."""
    if isinstance(answer, list) and answer and isinstance(answer[-1], list):
        pairs = list(zip(answer[-1][::2], answer[-1][1::2], strict=True))
        return [*answer[:-1], sorted(pairs)]
    return answer
