"""The lab model: an OpenAI-compatible endpoint that needs no network, meters what it sells and
misbehaves on request.

POST /v1/chat/completions   streamed or not; honours `Idempotency-Key`
GET  /v1/models             one model, `lab`
GET  /ledger                what was sold; DELETE begins new books
POST /faults                rules for misbehaving, a JSON list (lab_faults.py); DELETE lifts them
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from server.lab_answers import LabAnswer, answer, texts
from server.lab_faults import Fault, Faults
from server.lab_meter import Meter, Sale
from server.lab_wire import MODEL, chunk, completion, encode, event, usage
from tasks.settings import Settings

HEADERS: Final = {"x-slowcall-lab": "1"}
SHOWN: Final = 80
"""Characters of the prompt that the books keep."""


def create_lab(settings: Settings) -> ASGIApp:
    """The lab as an ASGI app; its pace and whether it honours keys come from the settings."""
    lab = Lab(
        meter=Meter(honour_keys=settings.lab_honours_keys),
        delay_s=settings.lab_delay_s,
        piece_s=1 / settings.lab_tokens_per_s if settings.lab_tokens_per_s else 0,
    )
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", Chat(lab), methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/ledger", lab.ledger, methods=["GET", "DELETE"]),
            Route("/faults", lab.rules, methods=["POST", "DELETE"]),
            Route("/healthz", healthz, methods=["GET"]),
        ]
    )
    return hold_transport(app)


async def models(_: Request) -> Response:
    """The one model there is."""
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "slowcall"}
    return JSONResponse({"object": "list", "data": [model]}, headers=HEADERS)


async def healthz(_: Request) -> Response:
    """The lab is up."""
    return JSONResponse({"status": "ok"}, headers=HEADERS)


@dataclass(slots=True)
class Lab:
    """What the routes share: the books, the rules, the pace (`_s` are seconds)."""

    meter: Meter
    delay_s: float
    piece_s: float
    faults: Faults = field(default_factory=Faults)

    async def ledger(self, request: Request) -> Response:
        """The books; DELETE begins new ones."""
        if request.method == "DELETE":
            self.meter.clear()
            return Response(status_code=204)
        return JSONResponse(self.meter.ledger())

    async def rules(self, request: Request) -> Response:
        """New rules instead of the old; DELETE lifts them."""
        rules = b"[]" if request.method == "DELETE" else await request.body()
        try:
            self.faults.load(rules)
        except ValidationError as error:
            return refusal(422, str(error))
        return Response(status_code=204)


class Chat:
    """`POST /v1/chat/completions`, as an ASGI app so that it can watch the client and drop it."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        lab = self._lab
        lab.meter.requests += 1
        try:
            body = json.loads(await request.body())
            computed, messages = answer(body), texts(body)
        except (ValueError, AttributeError, TypeError) as error:
            await refusal(400, str(error))(scope, receive, send)
            return
        fault = lab.faults.pick("\n".join(text for _, text in messages))
        async with Client(scope, receive, send) as client:
            if not await client.stays(fault.delay_s):
                return
            if fault.drop == "before":
                client.drop()
                return
            if fault.status:
                lab.meter.refused += 1
                await refuse(fault)(scope, receive, send)
                return
            key = request.headers.get("idempotency-key")
            if lab.meter.holds(key):
                fault = fault.model_copy(update={"error_after": None})
            sale = self._sell(computed, fault, prompt=messages[-1][1][:SHOWN], key=key)
            if fault.drop == "after":
                sale.state = "cut"
                client.drop()
                return
            deliver = deliver_stream if body.get("stream") else deliver_whole
            await deliver(lab, client, body, sale, fault)

    def _sell(self, computed: LabAnswer, fault: Fault, *, prompt: str, key: str | None) -> Sale:
        """The sale; an answer that will end in an error object is not charged for."""
        if fault.error_after is None:
            return self._lab.meter.sell(computed, prompt=prompt, key=key)
        self._lab.meter.refused += 1
        return Sale(0, key, prompt, computed.input_tokens, answer=computed)


class Client:
    """The other end of one request: notices when it leaves, and can be dropped."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._leaves: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Client:
        self._leaves = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._leaves:
            self._leaves.cancel()
            await asyncio.wait([self._leaves])

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def stays(self, wait_s: float | None) -> bool:
        """Wait so long (None: for ever); whether the client is still there."""
        assert self._leaves is not None
        if wait_s == 0:
            return not self._leaves.done()
        done, _ = await asyncio.wait([self._leaves], timeout=wait_s)
        return not done

    async def start(self, status: int, content_type: str) -> None:
        """Send the head of an answer."""
        headers = {"content-type": content_type, "x-request-id": f"lab-{time.time_ns()}", **HEADERS}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def drop(self) -> None:
        """Close the connection without another byte."""
        self._scope["slowcall.transport"].abort()


async def deliver_stream(
    lab: Lab, client: Client, body: Mapping[str, Any], sale: Sale, fault: Fault
) -> None:
    """The answer as an event stream, at the lab's pace, as far as the fault lets it come."""
    if not await client.stays(lab.delay_s):
        sale.state = "left"
        return
    await client.start(200, "text/event-stream; charset=utf-8")
    await client.write(event(chunk(sale, {"role": "assistant", "content": ""})))
    for sent, piece in enumerate(sale.answer.pieces):
        if await misbehaves(client, sale, fault, sent):
            return
        await client.write(event(chunk(sale, {"content": piece})))
        sale.output_tokens = max(sale.output_tokens, sent + 1)
        if not await client.stays(lab.piece_s):
            sale.state = "left"
            return
    if await misbehaves(client, sale, fault, len(sale.answer.pieces)):
        return
    await client.write(event(chunk(sale, {}, sale.answer.finish_reason)))
    if (body.get("stream_options") or {}).get("include_usage"):
        await client.write(event(chunk(sale, None) | {"usage": usage(sale)}))
    sale.state = "answered"
    await client.write(b"data: [DONE]\n\n", more=False)


async def misbehaves(client: Client, sale: Sale, fault: Fault, sent: int) -> bool:
    """Do what the fault wants after so many pieces; whether the stream ended by it."""
    if sent == fault.error_after:
        await client.write(event(fault.error()))
        await client.write(b"data: [DONE]\n\n", more=False)
    elif sent == fault.cut_after:
        sale.state = "cut"
        client.drop()
    elif sent == fault.hang_after:
        await client.stays(None)
        sale.state = "left"
    else:
        return False
    return True


async def deliver_whole(
    lab: Lab, client: Client, body: Mapping[str, Any], sale: Sale, fault: Fault
) -> None:
    """The answer as one JSON document, after the time that its stream would take."""
    pieces = len(sale.answer.pieces)
    sale.output_tokens = pieces
    if not await client.stays(lab.delay_s + lab.piece_s * pieces):
        sale.state = "left"
        return
    if fault.hang_after is not None or fault.cut_after is not None:
        await misbehaves(client, sale, fault, (fault.hang_after or 0) + (fault.cut_after or 0))
        return
    await client.start(200, "application/json")
    document = fault.error() if fault.error_after is not None else completion(sale)
    if fault.error_after is None:
        sale.state = "answered"
    await client.write(encode(document), more=False)


def refusal(status: int, message: str) -> Response:
    """An error as OpenAI's endpoints write it."""
    return refuse(Fault(status=status, message=message))


def refuse(fault: Fault) -> Response:
    """The refusal that a fault asks for."""
    headers = dict(HEADERS) | fault.headers
    if fault.retry_after is not None:
        headers["retry-after"] = fault.retry_after
    return JSONResponse(fault.error(), status_code=fault.status or 500, headers=headers)


def hold_transport(app: ASGIApp) -> ASGIApp:
    """Keep the connection's transport in the scope: ASGI itself has no way to drop a client."""

    async def outermost(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            held: MutableMapping[str, Any] = scope
            held["slowcall.transport"] = send.__self__.transport  # type: ignore[attr-defined]
        await app(scope, receive, send)

    return outermost
