"""Made-up targets of every kind for the built-in data sets."""

import dataclasses

import torch

from rgat.data import Target
from rgat.data.targets import TargetTable, output_names, standardise

MIXED = (
    Target("n", "regression", mean=2.0, scale=3.0),
    Target("c", "multi-class", ("a", "b", "c")),
    Target("b", "binary"),
    Target("l", "multi-label", ("x", "y")),
)


def with_targets(data, targets=MIXED, bounded=False):
    """Give a built-in data set made-up values, a tenth of them missing."""
    generator = torch.Generator().manual_seed(1)
    count = len(data.labels)
    columns = []
    for target in targets:
        if target.kind == "regression":
            columns.append(2 + 3 * torch.randn(count, 1, generator=generator).double())
        elif target.kind == "multi-class":
            chosen = torch.randint(target.width, (count,), generator=generator)
            columns.append(torch.nn.functional.one_hot(chosen, target.width).double())
        else:
            columns.append((torch.rand(count, target.width, generator=generator) < 0.4).double())
        columns[-1][torch.rand(count, generator=generator) < 0.1] = torch.nan
    values = torch.cat(columns, 1)
    bounds = None
    if bounded:
        bounds = torch.zeros(values.shape, dtype=torch.int8)
        bounds[::5, 0], bounds[1::5, 0] = 1, -1
    names = output_names(targets)
    fields = {
        "values": values,
        "bounds": bounds,
        "targets": standardise(TargetTable(targets, values, bounds), data.train),
    }
    if hasattr(data, "tasks"):
        labels = torch.where(values.isnan(), -1, (values == 1).long())
        return dataclasses.replace(data, labels=labels, tasks=names, **fields)
    known = torch.zeros(count, dtype=torch.bool).index_fill_(0, torch.cat([data.train, data.valid, data.test]), True)
    values[~known] = torch.nan
    values[known, 0] = values[known, 0].nan_to_num(2.0)
    return dataclasses.replace(data, labels=torch.where(known, 0, -1), classes=names, **fields)
