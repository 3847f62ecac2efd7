"""The live gateway does what its OpenAPI document says, for calls that a generator makes up."""

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import negative_data_rejection

from headrace.deploy.documents import documents
from headrace.schemas.settings import Settings
from tests.gateway import ScriptedGateway, scripted_gateway

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:Do not use the `random` module"),  # schemathesis does
]

VALID = ["2xx", 401, 404, 410, 429, 503]
"""What may become of a valid call: 410 is a valid place in the log that is gone."""

API = schemathesis.openapi.from_dict(
    documents()["openapi"],
    config=schemathesis.Config.from_dict(
        {"checks": {"positive_data_acceptance": {"expected-statuses": VALID}}}
    ),
)
OPERATIONS = {
    operation.label: operation
    for operation in (found.ok() for found in API.get_all_operations() if isinstance(found, Ok))
}
WITH_INPUT = [label for label in OPERATIONS if "/v1/" in label and "models" not in label]
NUM_EXAMPLES = 15
KEY = {"Authorization": "Bearer key"}
MAX_NUMBER = 2**53
ANSWERED = "answered"
"""A request that is answered before the tests, so that its events can be read at once."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ScriptedGateway]:
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_text(json.dumps({"key": "acme"}))
    given = Settings(
        kafka=kafka_bootstrap,
        topic_prefix=f"t{uuid4().hex[:12]}",
        model="test-model",
        api_keys_file=keys,
    )
    async with scripted_gateway(given) as running, running.client(api_key="key") as client:
        await client.completions.create(
            model="m", prompt="x", extra_body={"request_id": ANSWERED, "stream": True}
        )
        yield running


def fixed(label: str, mode: GenerationMode) -> dict[str, Any]:
    """What is not made up: the request whose events are read, and the key where others are bad."""
    found: dict[str, Any] = {"headers": KEY} if mode is GenerationMode.NEGATIVE else {}
    return found | ({"path_parameters": {"request_id": ANSWERED}} if "/events" in label else {})


def plain(value: Any) -> Any:
    """`value` with 3.0 as 3 and small numbers: we refuse 3.0 where an integer is needed, and what
    64 bits do not hold, which JSON Schema cannot tell.
    """
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and abs(value) >= MAX_NUMBER:
        return 0
    return int(value) if isinstance(value, float) and value.is_integer() else value


def rename(case: Case[Any], number: int) -> None:
    """Give each call that names its request a name that no other has had.

    An id that was used in one session before is waited for in vain in another.
    """
    for names, name in ((case.headers, "Idempotency-Key"), (case.body, "request_id")):
        old = names.get(name) if isinstance(names, MutableMapping) else None
        if isinstance(names, MutableMapping) and isinstance(old, str) and 0 < len(old) < 500:
            names[name] = f"{old}-{number}"


def make_calls(gateway: ScriptedGateway, label: str, mode: GenerationMode) -> None:
    """Send generated calls and check each answer, in this thread.

    A broken call to a route with a query may be one with a parameter more, which is ignored.
    """
    numbers = count()

    @seed(7)
    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode, **fixed(label, mode)))
    def check(case: Case[Any]) -> None:
        if isinstance(case.body, dict):
            case.body = plain(case.body)
        rename(case, next(numbers))
        case.call_and_validate(
            base_url=f"http://{gateway.address}",
            headers=KEY,
            excluded_checks=[negative_data_rejection] if "/requests/" in label else [],
            timeout=20,
        )

    check()


@pytest.mark.parametrize("label", OPERATIONS)
async def test_valid_calls_are_answered_as_documented(gateway: ScriptedGateway, label: str) -> None:
    """Status, content type, headers and body; and the same call without a key is refused."""
    await asyncio.to_thread(make_calls, gateway, label, GenerationMode.POSITIVE)


@pytest.mark.parametrize("label", WITH_INPUT)
async def test_broken_calls_are_refused_as_documented(gateway: ScriptedGateway, label: str) -> None:
    """Broken bodies, parameters and methods get the error that the document tells of, no 5xx."""
    await asyncio.to_thread(make_calls, gateway, label, GenerationMode.NEGATIVE)
