"""Say in RDF where a prediction comes from: its probability, its spread, and the model that made it (PROV-O)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rgat.predictor.ensemble import Ensemble
from rgat.version import __version__

_RDF, _PROV = "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://www.w3.org/ns/prov#"
_LABEL = "<http://www.w3.org/2000/01/rdf-schema#label>"
_DOUBLE = "<http://www.w3.org/2001/XMLSchema#double>"


@dataclass(frozen=True)
class ModelRecord:
    """What triples say about a model; the same model has the same record wherever and whenever it predicts.

    Attributes:
        iri: its name, a digest of its settings and parameters.
        title: its kind and the version of this package.
        files: SHA-256 of each file that it was trained on.
    """

    iri: str
    title: str
    files: tuple[str, ...]

    def triples(self) -> str:
        """Return N-Triples about the model."""
        model, lines = f"<{self.iri}>", [f"<{_RDF}type> <{_PROV}SoftwareAgent>", f'{_LABEL} "{self.title}"']
        lines += [f"<{_PROV}wasDerivedFrom> <urn:sha256:{digest}>" for digest in self.files]
        return "".join(f"{model} {line} .\n" for line in lines)

    def statement(self, subject: str, predicate: str, value: str, probability: float | None, spread: float) -> str:
        """Return N-Triples about one predicted triple: a statement that the model is responsible for.

        A number has no probability.
        """
        digest = hashlib.sha256(f"{self.iri} {subject} {predicate} {value}".encode()).hexdigest()[:32]
        about = {
            f"<{_RDF}type>": f"<{_RDF}Statement>",
            f"<{_RDF}subject>": subject,
            f"<{_RDF}predicate>": predicate,
            f"<{_RDF}object>": value,
            "<urn:rgat:spread>": f'"{spread:.6f}"^^{_DOUBLE}',
            f"<{_PROV}wasAttributedTo>": f"<{self.iri}>",
        }
        if probability is not None:
            about["<urn:rgat:probability>"] = f'"{probability:.6f}"^^{_DOUBLE}'
        return "".join(f"<urn:rgat:prediction:{digest}> {word} {term} .\n" for word, term in about.items())


def model_record(ensemble: Ensemble, provenance: Mapping[str, Any]) -> ModelRecord:
    """Return the record of an ensemble that was trained on data of this provenance."""
    digest = hashlib.sha256(json.dumps(ensemble.config, sort_keys=True, default=str).encode())
    calibration = {"slope": ensemble.calibration.slope, "intercept": ensemble.calibration.intercept}
    digest.update(repr(ensemble.targets).encode() if ensemble.targets else b"")
    for tensors in (*(member.state_dict() for member in ensemble.members), calibration):
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    files = provenance.get("sha256")
    title = f"{ensemble.config.get('model')}, rgat {__version__}".replace("\\", "").replace('"', "")
    known = sorted(set(files.values())) if isinstance(files, dict) else []
    digests = tuple(word for word in known if isinstance(word, str) and word.isalnum())
    return ModelRecord(f"urn:rgat:model:{digest.hexdigest()}", title, digests)
