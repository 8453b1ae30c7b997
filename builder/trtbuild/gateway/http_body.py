"""Reading the body of a request, and noticing that whoever sent it has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive

from trtbuild.gateway.errors import ApiError, late, refused

T = TypeVar("T")
#: How much of a body that is too long is still read, in multiples of the limit: a caller that is still sending would get a
#: broken connection instead of the answer.
_DISCARDED = 4


class Disconnected(Exception):
    """The caller has gone: nobody waits for an answer."""


async def read_json(headers: Headers, receive: Receive, *, limit_bytes: int, limit_s: float) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        ApiError: 400, 408, 413 or 415.
        Disconnected: the caller went away.
    """
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"content-type is '{kind[:64]}', need application/json", code="unsupported_media_type")
    try:
        raw = await asyncio.wait_for(_read(headers, receive, limit_bytes), limit_s)
    except asyncio.TimeoutError:
        raise ApiError(
            408, f"the body did not arrive within {limit_s:g} seconds", code="timeout", headers={"connection": "close"}
        ) from None
    return parse(raw)


def parse(raw: bytes) -> dict[str, Any]:
    """Return the JSON object that bytes hold.

    Raises:
        ApiError: 400; they hold something else.
    """
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise refused(f"the body is no UTF-8: byte {error.start}", param=None, code="invalid_json") from None
    except json.JSONDecodeError as error:
        raise refused(
            f"the body is no JSON: {error.msg} at character {error.pos}", param=None, code="invalid_json"
        ) from None
    except (ValueError, RecursionError):  # a number of thousands of digits; lists within lists within lists
        raise refused("the body is no JSON that can be read", param=None, code="invalid_json") from None
    if not isinstance(value, dict):
        raise refused(f"the body is a {type(value).__name__}, need an object", param=None, code="invalid_json")
    return value


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T], *, limit_s: float) -> T:
    """Return what the work returns; it is cancelled when the caller goes away or time is up.

    Raises:
        Disconnected: the caller went away.
        ApiError: 504, time is up.
    """
    loop = asyncio.get_running_loop()
    task, gone = loop.create_task(work), loop.create_task(_gone(receive))
    try:
        await asyncio.wait({task, gone}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise Disconnected
        raise late(limit_s)
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(headers: Headers, receive: Receive, limit_bytes: int) -> bytes:
    announced = headers.get("content-length", "0")
    chunks: list[bytes] = []
    size, is_too_long = 0, announced.isdecimal() and int(announced[:20]) > limit_bytes
    more = True
    while more and size <= _DISCARDED * limit_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        is_too_long = is_too_long or size > limit_bytes
        if is_too_long:
            chunks.clear()
        else:
            chunks.append(chunk)
    if is_too_long:
        raise ApiError(
            413, f"the body is longer than {limit_bytes} bytes", code="body_too_large", headers={"connection": "close"}
        )
    return b"".join(chunks)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
