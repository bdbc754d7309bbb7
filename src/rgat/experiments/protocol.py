"""An experiment's request, data and folder: what all its units of work follow from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rgat.data import load
from rgat.experiments.folds import FoldedData, encode, fold_data
from rgat.experiments.inputs import with_descriptors
from rgat.experiments.records import Record, describe_data, open_experiment, read_experiment
from rgat.experiments.request import Request, make_request
from rgat.experiments.units import Unit, make_unit
from rgat.experiments.variants import build_variant
from rgat.training.configuration import split_config
from rgat.training.search import draw_options


@dataclass(frozen=True)
class Protocol:
    """A request, its data, and the folder of its records."""

    request: Request
    folded: FoldedData
    folder: Path
    data_hashes: dict[str, str]

    def records(self) -> list[Record]:
        """Return the records of the requested models and setting, or raise an error that names a damaged one."""
        experiment = read_experiment(self.folder)
        if experiment.damaged:
            path, reason = experiment.damaged[0]
            raise ValueError(
                f"all records in {self.folder} must be readable to continue, got {len(experiment.damaged)} damaged: "
                f"{path} ({reason}); delete the damaged files and start again, their units will be run again"
            )
        models, setting = self.request.models, self.request.setting
        records = [r for r in experiment.records if r["model"] in models and r.get("setting") == setting]
        for record in records:
            for name, value in self.request.fixed.items():
                if record["config"].get(name, value) != value:
                    raise ValueError(
                        f"all records of the setting {setting} in {self.folder} must have {name} = {value}, "
                        f"got {record['config'][name]}; give the setting another name"
                    )
        return records

    def unit(self, kind: str, model: str, config: dict[str, Any], **more: Any) -> Unit:
        """Return a unit of work of this experiment."""
        more |= {"budget": self.request.budget, "setting": self.request.setting, "data_hashes": self.data_hashes}
        return make_unit(kind, self.request.data, model, config, **more)


def open_protocol(asked: dict[str, Any], out: Path) -> Protocol:
    """Check the values of a ``Request``, load its data, and open the folder of its records, new or begun earlier.

    The folder has the name of the data set, and of the space unless it is the paper's, and lies in ``out``.
    """
    if not asked.get("data"):
        raise ValueError("`data` must name a data set, got nothing; `rgat data list` shows all of them")
    folded = fold_data(load(asked["data"]))
    description = describe_data({seed: folded.split(seed) for seed in folded.splits})
    request = make_request(description["task"], asked)
    if request.space == "extended":
        folded = with_descriptors(folded)
    _check_models(request, folded)
    hashes = folded.data.provenance.get("sha256") or {"prepared": hashlib.sha256(encode(folded)).hexdigest()}
    folder = out / (request.data if request.space == "paper" else f"{request.data}-{request.space}")
    open_experiment(folder, description | request.description() | {"data_hashes": hashes})
    return Protocol(request, folded, folder, hashes)


def _check_models(request: Request, folded: FoldedData) -> None:
    """Build each model once with the options that the user gave, so that an error shows before hours of work."""
    for model in request.models if request.fixed or request.selected else ():
        if request.selected is None:
            config = request.trial_config(model, draw_options(request.priors(model), request.search_seed, 0))
        else:
            config = request.selected_config(model)
        try:
            build_variant(folded.data, **split_config(config)[0])
        except (TypeError, ValueError) as error:
            raise ValueError(f"the options given for {model} must make a model, got an error: {error}") from error
