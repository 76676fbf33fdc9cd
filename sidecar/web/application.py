"""The sidecar's own HTTP endpoints. None of them changes anything or asks vLLM."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from sidecar.exposition import Board
from sidecar.frame_json import diagnosis, snapshot
from sidecar.web.page import render_page
from sidecar.web.protection import Authentication, Protection


def build_application(board: Board, protection: Protection | None = None) -> FastAPI:
    """All endpoints over one board. Health is that of the process: never of vLLM or a GPU."""
    application = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    if protection is not None and protection.authorizations:
        application.add_middleware(Authentication, authorizations=protection.authorizations)

    @application.get("/metrics")
    async def metrics(request: Request) -> Response:
        body, content_type = board.render(request.headers.get("accept", ""))
        # Set by hand: a response class would append its own character set.
        return Response(body, headers={"content-type": content_type})

    @application.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(render_page(board.frame))

    @application.get("/-/healthy")
    async def healthy() -> PlainTextResponse:
        return PlainTextResponse("healthy\n")

    @application.get("/-/ready")
    async def ready() -> PlainTextResponse:
        if board.frame is None:
            return PlainTextResponse("no poll yet\n", status_code=503)
        return PlainTextResponse("ready\n")

    @application.get("/api/v1/snapshot")
    async def latest() -> JSONResponse:
        if board.frame is None:
            return JSONResponse({"error": "no poll yet"}, status_code=503)
        return JSONResponse(snapshot(board.frame))

    @application.get("/api/v1/diagnosis")
    async def concluded() -> JSONResponse:
        if board.frame is None:
            return JSONResponse({"error": "no poll yet"}, status_code=503)
        return JSONResponse(diagnosis(board.frame))

    return application
