"""The OpenAI-compatible endpoints (contract §8): chat completions, completions, models."""

import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.consumers import api_operations as operations
from headrace.consumers.bodies import read_object, trace_of
from headrace.consumers.context import Gateway
from headrace.consumers.errors_http import as_request_error, failed_error
from headrace.consumers.generation import Generation
from headrace.consumers.http_calls import name_call, tell_later
from headrace.consumers.openai_form import ChunkForm, WholeForm
from headrace.consumers.openapi import ApiRoute
from headrace.consumers.sse import DONE, KEEP_ALIVE, begin_stream, sse_data, until_left
from headrace.consumers.submission import is_streamed, one_prompt, prepare
from headrace.schemas.errors import ErrorCode, HeadraceError, RequestError
from headrace.schemas.tasks import until_first_done

CLIENT_LEFT = 499
"""nginx's status for it; nobody reads it but our metrics."""


def openai_routes(gateway: Gateway) -> list[ApiRoute]:
    """The routes under `/v1` that OpenAI's clients use."""
    started_s = int(time.time())

    async def chat_completions(request: Request) -> Response:
        return await _complete(gateway, request, chat=True)

    async def completions(request: Request) -> Response:
        return await _complete(gateway, request, chat=False)

    async def models(request: Request) -> Response:
        gateway.tenant_of(request)
        return JSONResponse({"object": "list", "data": [_model(gateway, started_s)]})

    async def model(request: Request) -> Response:
        gateway.tenant_of(request)
        settings = gateway.settings
        if request.path_params["name"] not in (settings.short_model, settings.model):
            text = f"there is no model {request.path_params['name']!r:.100} here"
            raise RequestError(ErrorCode.MODEL_NOT_FOUND, text, "model")
        return JSONResponse(_model(gateway, started_s))

    return [
        ApiRoute(operations.CHAT, chat_completions),
        ApiRoute(operations.TEXT, completions),
        ApiRoute(operations.MODELS, models),
        ApiRoute(operations.MODEL, model),
    ]


def _model(gateway: Gateway, created_s: int) -> dict[str, Any]:
    return {
        "id": gateway.settings.short_model,
        "object": "model",
        "created": created_s,
        "owned_by": "headrace",
    }


async def _complete(gateway: Gateway, request: Request, *, chat: bool) -> Response:
    tenant = gateway.tenant_of(request)
    body = await read_object(request, gateway.settings.max_request_bytes)
    if not chat:
        body = one_prompt(body)
    _check_kind(body, chat=chat)
    call = prepare(body, tenant=tenant, idempotency_key=request.headers.get("idempotency-key"))
    name_call(request, call.request_id, ignored=call.ignored)
    tell_later(request, lambda: gateway.admission.headers(tenant))
    streamed = is_streamed(body)
    call.body["stream"] = streamed
    generation = Generation(gateway, call, tenant=tenant, trace=trace_of(request))
    if not streamed:
        return await _whole(generation, request, chat=chat)
    form = ChunkForm(chat=chat, include_usage=call.options.stream_options.include_usage)
    return await _stream(gateway, generation, form, request)


def _check_kind(body: dict[str, Any], *, chat: bool) -> None:
    needed = "messages" if chat else "prompt"
    if body.get(needed) is None:
        raise RequestError(ErrorCode.INVALID_VALUE, f"{needed} is needed", needed)


async def _whole(generation: Generation, request: Request, *, chat: bool) -> Response:
    answer: list[dict[str, Any]] = []

    async def collect() -> None:
        form = WholeForm(chat=chat)
        async with generation:
            while not generation.finished:
                found = await generation.next()
                if found is None:
                    continue
                event = found[0].event
                if event["object"] == "error":
                    raise failed_error(event)
                form.take(event, found[1])
            answer.append(form.body(event))

    await until_first_done(until_left(request.receive), collect())
    return JSONResponse(answer[0]) if answer else Response(status_code=CLIENT_LEFT)


async def _stream(
    gateway: Gateway, generation: Generation, form: ChunkForm, request: Request
) -> Response:
    stream = await begin_stream(
        request,
        _pieces(gateway, generation, form),
        on_error=_last_words,
        send_timeout_s=gateway.bounds.send_s,
    )
    return stream or Response(status_code=CLIENT_LEFT)


def _last_words(problem: HeadraceError) -> bytes:
    return sse_data({"error": as_request_error(problem).body()}) + DONE


async def _pieces(
    gateway: Gateway, generation: Generation, form: ChunkForm
) -> AsyncGenerator[bytes, None]:
    async with generation:
        while not generation.finished:
            found = await generation.next()
            if found is None:
                yield KEEP_ALIVE
                continue
            event = found[0].event
            if event["object"] == "error":
                raise failed_error(event)
            for chunk in form.chunks(event, found[1]):
                gateway.metrics.events_sent.labels("openai").inc()
                yield sse_data(chunk)
    yield DONE
