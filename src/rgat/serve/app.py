"""The application: paths of the service, and what requests must look like."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from rgat.predictor import MoleculePredictor, NodePredictor
from rgat.serve.answers import MoleculeAnswers, NodeAnswers, check_items, make_answers
from rgat.serve.batching import Batcher
from rgat.serve.guard import Guard
from rgat.serve.limits import Limits, RefusedError, quoted
from rgat.serve.metrics import CONTENT_TYPE, Metrics
from rgat.serve.page import documentation, page, policy
from rgat.version import __version__

MOST_NAME = 4096  # characters of a node's name
MOST_SMILES = 2000  # characters; RDKit's time grows faster than a molecule
MOST_HITS = 50

Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME)]


def one_line(smiles: str) -> str:
    """Return a SMILES; raise if it has several lines, of which the parser would read the first alone."""
    if re.search(r"[\x00-\x1f\x7f]", smiles.strip()):
        raise ValueError("a SMILES must be one line without tabs; send each one by itself")
    return smiles


Smiles = Annotated[str, Field(max_length=MOST_SMILES), AfterValidator(one_line)]


class Body(BaseModel):
    """A body of a request; fields that it does not have are refused."""

    model_config = ConfigDict(extra="forbid")


class Nodes(Body):
    """Nodes of the graph, by their names: IRIs with or without brackets."""

    nodes: Annotated[list[Name], Field(min_length=1)]


class ExplainedNode(Body):
    """A node of the graph, how many edges to list, and their order."""

    node: Name
    top: Annotated[int, Field(ge=1, le=100)] = 20
    by: Literal["strength", "attention", "effect"] = "strength"
    task: Annotated[str, Field(max_length=1000)] | None = None  # of a model with several targets


class NewNodes(Body):
    """Triples added to the graph, as text, and the nodes to predict: by default the new ones of the labelled type."""

    triples: Annotated[str, Field(min_length=1)]
    format: Literal["turtle", "ntriples"] = "turtle"
    nodes: Annotated[list[Name], Field(min_length=1)] | None = None


class ExplainedNewNode(ExplainedNode):
    """A node and triples added to the graph, as text."""

    triples: Annotated[str, Field(min_length=1)]
    format: Literal["turtle", "ntriples"] = "turtle"


class Molecules(Body):
    """Molecules as SMILES."""

    smiles: Annotated[list[Smiles], Field(min_length=1)]


class ExplainedMolecule(Body):
    """A molecule as SMILES, and a task: by default the one with the highest probability."""

    smiles: Smiles
    task: Annotated[str, Field(max_length=1000)] | None = None


class PlainJson(JSONResponse):
    """JSON in ASCII, so that any text of a request can be sent back."""

    def render(self, content: Any) -> bytes:
        """Return the bytes."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def make_app(
    predictor: NodePredictor | MoleculePredictor, limits: Limits | None = None, hosts: tuple[str, ...] | None = None
) -> FastAPI:
    """Return an ASGI application that answers requests about a model.

    Args:
        predictor: the model, from `rgat.fit` or `rgat.load`.
        limits: limits of a request; by default ``Limits()``.
        hosts: accepted values of the header Host; None accepts all.

    Examples:
        >>> import rgat
        >>> from rgat.serve import make_app
        >>> app = make_app(rgat.fit("institute", comparison=False, max_epochs=2))
        >>> sorted(app.openapi()["paths"])[:3]
        ['/explain', '/explain/new', '/health']
    """
    limits, metrics = limits or Limits(), Metrics()
    answers = make_answers(predictor, limits)
    batcher = Batcher(answers.jobs, metrics.count_batch)
    metrics.waiting = batcher.waiting

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()

    app = FastAPI(
        title=answers.describe()["name"],
        summary=f"Predictions and explanations of a model by rgat ({answers.describe()['model']}).",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        default_response_class=PlainJson,
    )
    _add_errors(app)
    _add_pages(app, answers.describe(), metrics)
    if isinstance(answers, NodeAnswers):
        _add_nodes(app, answers, batcher)
    else:
        _add_molecules(app, answers, batcher)
    app.add_middleware(Guard, limits=limits, metrics=metrics, hosts=hosts)
    return app


def _add_errors(app: FastAPI) -> None:
    """Answer every error by JSON with one sentence."""

    @app.exception_handler(RefusedError)
    async def refuse(request: Request, error: RefusedError) -> Response:
        return PlainJson({"error": error.sentence}, error.status)

    @app.exception_handler(HTTPException)
    async def fail(request: Request, error: HTTPException) -> Response:
        known = {404: "this path is not known; GET /docs lists all", 405: "this path does not take this method"}
        return PlainJson({"error": known.get(error.status_code, str(error.detail))}, error.status_code)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return PlainJson({"error": f"the body must be valid JSON: {first['ctx']['error']}"}, 422)
        place = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
        got = f", got {quoted(first['input'])}" if isinstance(first.get("input"), str) and first["input"] else ""
        return PlainJson(
            {"error": f"{quoted(place)} is invalid: {first['msg'].removeprefix('Value error, ')}{got}"}, 422
        )

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return PlainJson({"error": "the service failed to answer; its log says why"}, 500)


def _add_pages(app: FastAPI, description: dict[str, Any], metrics: Metrics) -> None:
    @app.get("/", include_in_schema=False)
    async def show() -> Response:
        return HTMLResponse(page(), headers={"content-security-policy": policy()})

    @app.get("/docs", include_in_schema=False)
    async def document() -> Response:
        return HTMLResponse(documentation(app.openapi()), headers={"content-security-policy": policy()})

    @app.get("/health", summary="Tell whether the service is alive.")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", summary="Counters in the text format of Prometheus.", response_class=PlainTextResponse)
    async def measure() -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    @app.get("/model", summary="Describe the model and its quality on held-out data.")
    async def describe() -> dict[str, Any]:
        return description


def _add_nodes(app: FastAPI, answers: NodeAnswers, batcher: Batcher) -> None:
    @app.get("/search", summary="Find nodes whose name or title has a text in it.")
    async def search(
        q: Annotated[str, Query(min_length=1, max_length=200)], most: Annotated[int, Query(ge=1, le=MOST_HITS)] = 12
    ) -> dict[str, Any]:
        return {"nodes": answers.search(q, most)}

    @app.post("/predict", summary="Predict the classes of nodes of the graph.")
    async def predict(request: Request, body: Nodes) -> Response:
        check_items(len(body.nodes), "nodes", answers.limits)
        answers.check_nodes(body.nodes)
        if answers.data.is_stored:
            return PlainJson(await batcher.ask("nodes", body.nodes, request))
        return PlainJson(answers.predict(body.nodes))

    @app.post("/explain", summary="Explain the prediction of a node of the graph.")
    async def explain(request: Request, body: ExplainedNode) -> Response:
        return PlainJson(await batcher.ask("explain", (body.node, body.top, body.by, body.task), request))

    @app.post("/predict/new", summary="Predict the classes of new nodes by their triples.")
    async def predict_new(request: Request, body: NewNodes) -> Response:
        check_items(len(body.nodes or ()), "nodes", answers.limits)
        return PlainJson(await batcher.ask("new nodes", (body.triples, body.format, body.nodes), request))

    @app.post("/explain/new", summary="Explain the prediction of a node with triples added to the graph.")
    async def explain_new(request: Request, body: ExplainedNewNode) -> Response:
        asked = (body.triples, body.format, body.node, body.top, body.by, body.task)
        return PlainJson(await batcher.ask("explain new", asked, request))


def _add_molecules(app: FastAPI, answers: MoleculeAnswers, batcher: Batcher) -> None:
    @app.post("/predict", summary="Predict all tasks of molecules.")
    async def predict(request: Request, body: Molecules) -> Response:
        check_items(len(body.smiles), "molecules", answers.limits)
        return PlainJson(await batcher.ask("molecules", body.smiles, request))

    @app.post("/explain", summary="Explain the prediction of a molecule by its atoms and bonds.")
    async def explain(request: Request, body: ExplainedMolecule) -> Response:
        return PlainJson(await batcher.ask("explain", (body.smiles, body.task), request))
