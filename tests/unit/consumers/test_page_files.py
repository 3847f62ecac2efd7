"""How the page's files are served."""

import re
from importlib.resources import files

import httpx
import pytest
from starlette.applications import Starlette

from headrace.consumers.page_files import page_routes

FOLDER = files("headrace.consumers") / "page"


@pytest.fixture
def client() -> httpx.AsyncClient:
    transport = httpx.ASGITransport(Starlette(routes=page_routes()))
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


async def test_every_file_is_served_under_the_strict_policy(client: httpx.AsyncClient) -> None:
    """Nothing from elsewhere, nothing inline, in no frame of others."""
    async with client:
        for file in FOLDER.iterdir():
            name = file.name
            answer = await client.get("/" if name == "index.html" else f"/page/{name}")
            assert answer.content == file.read_bytes()
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            expected = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
            assert answer.headers["content-type"].startswith(expected[name.rpartition(".")[2]])


async def test_a_file_that_has_not_changed_is_not_sent_again(client: httpx.AsyncClient) -> None:
    """Asked for each time, so that a new version is seen at once."""
    async with client:
        first = await client.get("/page/app.js")
        assert first.headers["cache-control"] == "no-cache"
        again = await client.get("/page/app.js", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        other = await client.get("/page/app.js", headers={"If-None-Match": '"other"'})
        assert other.content == first.content


def test_no_file_has_anything_inline_and_all_modules_are_fetched_at_once() -> None:
    """The policy would stop inline code; modules that wait for each other cost round trips."""
    page = (FOLDER / "index.html").read_text()
    assert re.findall(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", page) == []
    preloaded = set(re.findall(r'rel="modulepreload" href="/page/(\w+\.js)"', page))
    modules = {file.name for file in FOLDER.iterdir() if file.name.endswith(".js")}
    assert preloaded | {"app.js", "theme.js"} == modules
    for name in modules:
        text = (FOLDER / name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
