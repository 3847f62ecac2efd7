"""The keys file, what it says of tenants, and its changes."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from headrace.consumers.api_keys import ApiKeys, KeyTable, digest_of, load_key_table
from headrace.consumers.gateway_metrics import GatewayMetrics
from headrace.consumers.keys_watch import KeysWatch
from headrace.consumers.rate_limits import Limits
from headrace.schemas.errors import RequestError, SettingsError


def keys_file(folder: Path, content: Any) -> Path:
    path = folder / "keys.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def hashed(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def test_plain_and_hashed_keys_name_their_tenants(tmp_path: Path) -> None:
    """Both forms stand side by side; a hash is no key."""
    keys = ApiKeys(load_key_table(keys_file(tmp_path, {"a": "acme", hashed("b"): "bob"})))
    assert (keys.tenant_of("a"), keys.tenant_of("b")) == ("acme", "bob")
    for wrong in (None, "", "c", hashed("b"), "a ", "\ud800"):
        with pytest.raises(RequestError):
            keys.tenant_of(wrong)


def test_without_a_file_everybody_is_default() -> None:
    """A key that is sent all the same does no harm."""
    keys = ApiKeys(load_key_table(None), limits=Limits(requests=5))
    assert keys.keyless
    assert keys.tenant_of(None) == keys.tenant_of("x") == "default"
    assert keys.limits_of("default") == Limits(requests=5)
    assert keys.limits_of("other") is None


def test_a_key_may_name_its_tenants_limits(tmp_path: Path) -> None:
    """What it does not name is as the settings say; the tenant's other keys need not repeat it."""
    content = {
        "a": {"tenant": "acme", "requests_per_minute": 7},
        "b": "acme",
        "c": {"tenant": "other"},
    }
    keys = ApiKeys(load_key_table(keys_file(tmp_path, content)), limits=Limits(60, 1000))
    assert keys.tenant_of("b") == "acme"
    assert keys.limits_of("acme") == Limits(7, 1000)
    assert keys.limits_of("other") == Limits(60, 1000)
    assert keys.limits_of("stranger") is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"secret-1":1}',
        '{"":"t"}',
        '{"sha256:secret-1":"t"}',
        '{"secret-1":""}',
        '{"secret-1":"t","secret-1":"u"}',
        '{"secret-1":"\\ud800"}',
        {"secret-1": "t" * 513},
        {"secret-1": "t", hashed("secret-1"): "u"},
        {"secret-1": {"tenant": "t", "requests": 5}},
        {"secret-1": {"tenant": "t", "requests_per_minute": 0}},
        {"secret-1": {"tenant": "t", "tokens_per_minute": "5"}},
        {"secret-1": {"requests_per_minute": 5}},
        {
            "secret-1": {"tenant": "t", "tokens_per_minute": 5},
            "secret-2": {"tenant": "t", "tokens_per_minute": 6},
        },
    ],
)
def test_a_bad_keys_file_is_an_error_that_shows_no_key(tmp_path: Path, content: Any) -> None:
    """Found at start, not at the first call. The same key twice is bad in either form."""
    with pytest.raises(SettingsError) as problem:
        load_key_table(keys_file(tmp_path, content))
    assert "secret" not in str(problem.value)
    assert str(tmp_path) in str(problem.value)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Missing, or a folder."""
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(SettingsError):
            load_key_table(path)


def test_who_watches_a_key_is_told_when_it_goes() -> None:
    """Also when it becomes another tenant's, or had gone before; never after leaving."""

    def table(**tenants: str) -> KeyTable:
        return KeyTable({digest_of(key): tenant for key, tenant in tenants.items()})

    told: list[str] = []
    keys = ApiKeys(table(a="t", b="t", c="t"))

    def note(name: str) -> Callable[[], None]:
        return lambda: told.append(name)

    with keys.watched("c", "t", note("c")):
        pass
    with keys.watched("a", "t", note("a")), keys.watched("b", "t", note("b")):
        keys.replace(table(a="t", b="t"))
        assert told == []
        keys.replace(table(a="t", b="u"))
        assert told == ["b"]
        with keys.watched("b", "t", note("late")):
            assert told == ["b", "late"]
        keys.replace(table(b="u"))
    assert told == ["b", "late", "a"]


async def test_the_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """Written in place, replaced, removed, broken: the last good keys stay, with one line each."""
    path = keys_file(tmp_path, {"secret-a": "t"})
    keys, metrics = ApiKeys(load_key_table(path)), GatewayMetrics(CollectorRegistry())
    watch = KeysWatch(path, keys, metrics, interval_s=0.001)

    def count(result: str) -> float:
        found = metrics.registry.get_sample_value(
            "headrace_gateway_key_readings_total", {"result": result}
        )
        return found or 0.0

    async def until(result: str, number: int) -> None:
        async with asyncio.timeout(5):
            while count(result) < number:  # noqa: ASYNC110 - a metric has no event
                await asyncio.sleep(0.001)

    with capture_logs() as lines:
        await watch.start()
        keys_file(tmp_path, {"secret-b": "t"})
        await until("changed", 1)
        assert keys.tenant_of("secret-b") == "t"
        keys_file(tmp_path, '{"secret-b": ')
        await until("failed", 1)
        path.unlink()
        await until("failed", 2)
        assert keys.tenant_of("secret-b") == "t"
        new = tmp_path / "new.json"
        new.write_text(json.dumps({"secret-c": "t"}))
        new.replace(path)
        await until("changed", 2)
        assert keys.tenant_of("secret-c") == "t"
        with pytest.raises(RequestError):
            keys.tenant_of("secret-b")
        await watch.stop()
        await watch.stop()
    assert [line["event"] for line in lines] == [
        "keys.changed",
        "keys.not_read",
        "keys.not_read",
        "keys.changed",
    ]
    assert "secret" not in repr(lines)
