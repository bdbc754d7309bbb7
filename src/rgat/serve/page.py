"""The pages of a service: one for people, and one that documents its paths. They load nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from rgat.predictor.words import counted


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    return _file("picture.js") + _file("page.js")


@cache
def page() -> str:
    """Return the page for people; its script asks the service for everything that it shows."""
    return Template(_file("page.html")).substitute(style=_file("page.css"), script=_script())


@cache
def policy() -> str:
    """Return the Content-Security-Policy of both pages: their own style and script, and nothing else."""
    style, script = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (_file("page.css"), _script())
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def documentation(schema: Mapping[str, Any]) -> str:
    """Return a page that documents the paths of an OpenAPI schema."""
    parts = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts.append(
                f'<section class="card"><h2><span class="method">{method.upper()}</span><code>{_text(path)}</code></h2>'
                f"<p>{_text(operation.get('summary', ''))}</p>{''.join(_inputs(schema, operation))}"
                f"<pre>{_text(_example(schema, path, method, operation))}</pre></section>"
            )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>API of {_text(schema['info']['title'])}</title><style>{_file('page.css')}</style></head>"
        '<body class="api"><div class="bar"><p class="brand">rgat</p><nav aria-label="Pages"><a href="/">Page</a>'
        '<a href="/openapi.json">OpenAPI</a><a href="/metrics">Metrics</a></nav></div>'
        f'<main><header><h1>API of {_text(schema["info"]["title"])}</h1><p class="lead">'
        f"{_text(schema['info'].get('summary', ''))} Requests and answers are JSON; an error is "
        f'<code>{{"error": "one sentence"}}</code> with a status from 400 on.</p></header><br>{"".join(parts)}</main>'
        "</body></html>"
    )


def _text(text: str) -> str:
    return html.escape(text)


def _resolve(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema, or the one that it refers to."""
    if "$ref" not in value:
        return value
    return schema["components"]["schemas"][value["$ref"].rpartition("/")[2]]  # type: ignore[no-any-return]


def _body(schema: Mapping[str, Any], operation: Mapping[str, Any]) -> Mapping[str, Any]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return _resolve(schema, content.get("schema", {}))


def _inputs(schema: Mapping[str, Any], operation: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of the fields of a request."""
    body = _body(schema, operation)
    fields = [(name, value, name in body.get("required", ())) for name, value in body.get("properties", {}).items()]
    fields += [(entry["name"], entry["schema"], entry["required"]) for entry in operation.get("parameters", ())]
    if not fields:
        return
    if body.get("description"):
        yield f"<p>{_text(body['description'])}</p>"
    yield '<div class="scroll"><table><thead><tr><th>field</th><th>type</th><th>limits</th></tr></thead><tbody>'
    for name, value, required in fields:
        default = "required" if required else f"default {json.dumps(value.get('default'))}"
        cells = (_text(_type(value)), _text(default + _bounds(value)))
        yield f"<tr><td><code>{_text(name)}</code></td><td>{'</td><td>'.join(cells)}</td></tr>"
    yield "</tbody></table></div>"


def _type(value: Mapping[str, Any]) -> str:
    if "enum" in value:
        return " or ".join(json.dumps(word) for word in value["enum"])
    if "anyOf" in value:
        return " or ".join(_type(each) for each in value["anyOf"])
    return f"array of {_type(value['items'])}" if value.get("type") == "array" else str(value.get("type", "any"))


def _bounds(value: Mapping[str, Any]) -> str:
    words = {
        "minimum": "at least",
        "maximum": "at most",
        "minLength": "at least",
        "maxLength": "at most",
        "minItems": "at least",
    }
    units = {"minLength": "character", "maxLength": "character", "minItems": "item"}
    bounds = [(word, value[key], units.get(key)) for key, word in words.items() if key in value]
    return "".join(f"; {word} {f'{bound:g}' if unit is None else counted(bound, unit)}" for word, bound, unit in bounds)


def _example(schema: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any]) -> str:
    """Return a command that asks the service."""
    query = "?q=a" if path == "/search" else ""
    if method == "get":
        return f"curl 'http://127.0.0.1:8000{path}{query}'"
    body = _body(schema, operation)
    values = {"nodes": ["NODE"], "node": "NODE", "triples": "<NODE> <PREDICATE> <OBJECT> ."}
    values |= {"smiles": ["CCO"] if body["properties"].get("smiles", {}).get("type") == "array" else "CCO"}
    needed = {name: values[name] for name in body.get("required", ())}
    return f"curl 'http://127.0.0.1:8000{path}' -H 'content-type: application/json' \\\n  -d '{json.dumps(needed)}'"
