"""The control record (contract §4)."""

from typing import Any, Literal

from pydantic import ConfigDict, ValidationError

from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.headers import Headers
from headrace.schemas.request import DEFAULT_TENANT, Identifier, header_tenant
from headrace.schemas.strict_json import decode_object
from headrace.schemas.wire import WireModel, refusal


def _action_is_needed(schema: dict[str, Any]) -> None:
    schema["required"].append("action")


class _Command(WireModel):
    model_config = ConfigDict(json_schema_extra=_action_is_needed)

    session_id: Identifier
    tenant: Identifier = DEFAULT_TENANT


class Cancel(_Command):
    """End a generation early; it may not have been read yet."""

    action: Literal["cancel"] = "cancel"
    request_id: Identifier


class DeleteSession(_Command):
    """Forget a conversation and its KV state as soon as this is read."""

    action: Literal["delete_session"] = "delete_session"


Control = Cancel | DeleteSession


def decode_control(value: bytes, headers: Headers = ()) -> Control:
    """Read a control record; its tenant is the field, else the header, else the default.

    Raises: RequestError where it is none.
    """
    body = decode_object(value)
    if body.get("tenant") is None:
        body["tenant"] = header_tenant(headers)
    action = body.get("action")
    try:
        if action == "cancel":
            return Cancel.model_validate(body)
        if action == "delete_session":
            return DeleteSession.model_validate(body)
    except ValidationError as problem:
        raise refusal(problem, body) from problem
    text = "must be 'cancel' or 'delete_session'"
    raise RequestError(ErrorCode.INVALID_VALUE, text, "action")
