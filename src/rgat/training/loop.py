"""The training loop of one model or a stack: Adam, early stopping on the validation part, the best epoch kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rgat.data import GraphData, NodeData
from rgat.data.dataset import PARTS
from rgat.memory import return_fragments
from rgat.models import NodeClassifier, Stack
from rgat.nn.stacked import SHARED
from rgat.progress import Progress, shown
from rgat.training.adam import make_adam, select_members
from rgat.training.averaging import WeightAverage
from rgat.training.capture import Captured, training_on, why_not_capture
from rgat.training.checkpoint import identify
from rgat.training.configuration import PER_LAYER, Settings
from rgat.training.distributed import parallel, processes, separate_masks
from rgat.training.embeddings import SHARDED_TENSORS, DividedRows, ShardedEmbedding, divide_embedding
from rgat.training.fanouts import check_fanouts
from rgat.training.kept_rows import keep, restore
from rgat.training.loss import l2_penalty, member_l2_penalties, relational_layers
from rgat.training.resuming import Checkpoints
from rgat.training.run import Epoch, Meter, Result, Run
from rgat.training.sampled import SampledTask
from rgat.training.sharded import ShardedNodeTask
from rgat.training.targets import GraphTargetTask, NodeTargetTask, SampledTargetTask, ShardedTargetTask
from rgat.training.task import GraphTask, NodeTask, Score, check_parts, device_of
from rgat.training.tensor_files import Table

Data = NodeData | GraphData
Task = NodeTask | GraphTask | SampledTask | ShardedNodeTask


def fit(
    model: nn.Module,
    data: Data,
    settings: Settings | None = None,
    seed: int = 0,
    on_epoch: Callable[[Epoch], None] | None = None,
    progress: Progress = False,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
) -> Result:
    """Train ``model`` in place and leave it at its best epoch by validation.

    Several processes that `torchrun` started train one model together.

    Args:
        model: a ``NodeClassifier`` or ``GraphClassifier`` that fits the data, on the device to train on. Its parameters
            and the seed of its dropout were drawn when it was built.
        data: the data to learn from.
        settings: how to train. With ``shard_embeddings``, the model's embeddings stay divided among the processes.
        seed: the seed of the order of the batches.
        on_epoch: called after every epoch.
        progress: show the progress, or a function to call with each `rgat.progress.Step`.
        checkpoint: a folder for checkpoints. If it holds one of the same run (the same data, initial model, settings
            and seed), training resumes from there, on the CPU to the same numbers bit for bit; another is refused.
        checkpoint_seconds: the least time between checkpoints, 0 for each epoch; the last epoch always writes one.

    Examples:
        >>> from rgat import data, training
        >>> institute = data.load("institute")
        >>> model = training.build_model(institute)
        >>> training.fit(model, institute, training.Settings(max_epochs=2)).metric
        'accuracy'
    """
    settings = settings or Settings()
    _check_layers(settings, model)
    with training_on(device_of(model)):
        task = make_task([data], settings, device_of(model), seed)
        if settings.shard_embeddings:
            divide_embedding(model)
        identity = None if checkpoint is None else identify(model, data, settings, seed)
        of_graphs = isinstance(data, GraphData)
        with parallel(model, of_graphs):
            training = Training(model, task, [Run(settings)], seed, None if checkpoint is None else Path(checkpoint))
            writer = None
            if checkpoint is not None and identity is not None:
                writer = Checkpoints(Path(checkpoint), checkpoint_seconds, training, identity)
            if of_graphs:
                separate_masks(model)
            with shown(progress if processes().rank == 0 else False, ["training"]) as stages:
                run, meter = training.runs[0], Meter.of([settings], data, task.metric, stages.show)
                training.on_step = meter.on_step
                for ((_, epoch),) in training.epochs():
                    meter.on_epoch([epoch])
                    if on_epoch is not None:
                        on_epoch(epoch)
                    if writer is not None:
                        writer.write(run.is_finished)
            restore(model, training.finished.pop(0))
            model.eval()
        return training.results(model, training.runs, "alone")[0]


def _check_layers(settings: Settings, model: nn.Module) -> None:
    if settings.fanouts is not None:
        if not isinstance(model, NodeClassifier):
            raise ValueError(f"`fanouts` must be given for a NodeClassifier alone, got a {type(model).__name__}")
        check_fanouts(settings.fanouts, model.num_layers)
    for name in PER_LAYER:
        values, number = getattr(settings, name), len(relational_layers(model))
        if any(values) and len(values) != number:
            raise ValueError(f"`{name}` must be {number} numbers, one for each relational layer, got {values}")


def make_task(datas: Sequence[Data], settings: Settings, device: torch.device, seed: int = 0) -> Task:
    """Return the data of the members of a stack, or of one model, as the loop uses them."""
    selects, first = settings.patience is not None, datas[0]
    has_targets = first.values is not None  # other than one class per node, or 0/1 tasks
    if isinstance(first, GraphData):
        of_graphs = GraphTargetTask if has_targets else GraphTask
        return of_graphs(first, settings.batch_size, device, selects, settings.class_weights)
    if settings.fanouts is not None:
        check_parts(first, selects)
        return (SampledTargetTask if has_targets else SampledTask)(first, settings, device, seed)
    if processes().number > 1:
        of_shards = ShardedTargetTask if has_targets else ShardedNodeTask
        return of_shards(first, device, selects, settings.class_weights)
    nodes = [data for data in datas if isinstance(data, NodeData)]
    return (NodeTargetTask if has_targets else NodeTask)(nodes, device, selects, settings.class_weights)


class Training:
    """The state of a training, of a model or a stack with one run per member: everything that a checkpoint holds.

    A large table of the best embeddings is in a file in ``folder``.
    """

    def __init__(self, model: nn.Module, task: Task, runs: list[Run], seed: int, folder: Path | None = None) -> None:
        self.model, self.task, self.runs = model, task, runs
        task.label_smoothing = runs[0].settings.label_smoothing
        self.members = list(range(len(runs)))  # those still in training
        self.generator = torch.Generator().manual_seed(seed)
        self.layers: nn.Module = model.model if isinstance(model, Stack) else model
        rates = [run.settings.learning_rate for run in runs]
        embedding = getattr(self.layers, "embedding", None)
        rows = [] if embedding is None else list(embedding.parameters())
        is_row = {id(parameter) for parameter in rows}
        self.dense, self.rows = [p for p in model.parameters() if id(p) not in is_row], rows
        self.sharded = embedding if isinstance(embedding, ShardedEmbedding) else None
        self.optimizer = make_adam(self.dense, rates)
        # Gradients of node embeddings are sparse: only the rows of a batch are updated.
        self.row_optimizer = torch.optim.SparseAdam(rows, lr=rates[0]) if rows else None
        self.average = WeightAverage(self.layers, runs[0].settings.weight_averaging)
        # Without validation the last epoch is the best, so large embeddings need no copy.
        keeps_last = bool(rows) and runs[0].settings.patience is None and not self.average.on
        self.best: dict[str, Any] = self.layers.state_dict()
        if not keeps_last:
            self.best = keep(self.best, folder, in_file=self.sharded is None)
        self.finished: dict[int, dict[str, Any]] = {}  # the best state of members that have left the stack
        self.started = time.perf_counter()
        self.on_step: Callable[[float], None] | None = None
        self.device = device_of(model)
        self.autocast = torch.autocast(
            self.device.type, torch.bfloat16, runs[0].settings.autocast, cache_enabled=self.device.type != "cuda"
        )
        sparse = "its embeddings are updated row by row" if rows else None
        self.why_not_capture = why_not_capture(task.why_not_pad or sparse, self.device)
        if isinstance(task, SampledTask):
            task.pads = self.why_not_capture is None
        self._prepare()

    def _prepare(self) -> None:
        """Set up what depends on the remaining members."""
        settings = [self.runs[member].settings for member in self.members]
        like = next(self.model.parameters())
        kernel, attention, wide = (
            torch.tensor([getattr(each, name) for each in settings], dtype=like.dtype, device=like.device)
            for name in ("kernel_l2", "attention_l2", "wide_l1")
        )
        self.l1 = wide if bool(wide.any()) and hasattr(self.layers, "jump0") else None
        self.l2 = (kernel, attention) if bool(kernel.any() or attention.any()) else None
        self.captured_step, self.captured_logits = Captured(), Captured()

    def step(self, ids: Any) -> Tensor:
        """Take one step of Adam on a batch, captured where possible; return the loss of each member, ``[S]``."""
        if self.why_not_capture is not None or isinstance(self.task, ShardedNodeTask):
            return self._learn(lambda: self.task.losses(self.model, ids))
        if not self.task.pad(ids):  # the padded buffer has a new address
            self.captured_step.forget()
        padded = self.task.padded_losses
        return self.captured_step(lambda: self._learn(lambda: padded(self.model))).clone()

    def validate(self) -> list[Score]:
        """Score each member on the validation part, with its logits captured where possible."""
        task = self.task
        if not isinstance(task, NodeTask | GraphTask) or self.why_not_capture is not None or not task.keeps("valid"):
            return task.evaluate(self.model, ["valid"])[0]
        return task.scores(self.captured_logits(lambda: task.logits(self.model, "valid")), "valid")

    def _learn(self, compute_losses: Callable[[], Tensor]) -> Tensor:
        with self.autocast:
            losses = compute_losses()
        if self.l2 is not None and isinstance(self.model, Stack):
            losses = losses + member_l2_penalties(self.layers, *self.l2)
        elif self.l2 is not None:
            settings = self.runs[0].settings
            losses = losses + l2_penalty(self.layers, settings.kernel_l2, settings.attention_l2)
        if self.l1 is not None:
            losses = losses + self.l1 * self.layers.jump0.weight.abs().sum((-2, -1))  # type: ignore[operator,union-attr]
        optimizers = [self.optimizer] if self.row_optimizer is None else [self.optimizer, self.row_optimizer]
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        processes().average_gradients(self.dense, self.rows if self.sharded is None else [])
        if self.sharded is not None:
            self.sharded.average_gradient()
        for optimizer in optimizers:
            optimizer.step()
        return losses.detach()

    def epochs(self) -> Iterator[list[tuple[int, Epoch]]]:
        """Train until all members are finished; after every epoch yield the new point of each member's curve."""
        self._let_go()  # a resumed run may be finished
        while self.members:
            self.model.train()
            epoch = len(self.runs[self.members[0]].curve)
            losses = torch.stack(list(self._steps(epoch))).mean(0)
            train_losses = processes().average(losses).tolist()
            self.model.eval()
            self.average.update(epoch + 1)
            scores: list[Score] = [(math.nan, math.nan)] * len(self.members)
            if self._validates(epoch + 1):
                with torch.no_grad(), self.autocast, self.average.in_place():
                    scores = self.validate()
            points, improved = [], []
            for place, (member, loss, score) in enumerate(zip(self.members, train_losses, scores, strict=True)):
                run = self.runs[member]
                if run.is_finished:  # it leaves the stack later, with others
                    continue
                points.append((member, Epoch(len(run.curve) + 1, loss, *score)))
                if run.record(points[-1][1], self.task.watched(score)):
                    improved.append(place)
            self._keep_best(improved)
            yield points
            self._let_go()

    def _steps(self, epoch: int) -> Iterator[Tensor]:
        """Take the steps of an epoch, counted from 0, and yield the losses of each."""
        batches: Iterator[Any] = self.task.batches(self.generator, epoch)
        for number, batch in enumerate(batches, start=1):
            yield self.step(batch)
            return_fragments()
            if self.on_step is not None:
                self.on_step(epoch + number / self.task.num_steps)

    def _validates(self, epoch: int) -> bool:
        """Return whether an epoch, counted from 1, ends with a validation; the last one does."""
        settings = self.runs[0].settings
        is_due = epoch % settings.validate_every == 0 or epoch == settings.max_epochs
        return settings.patience is not None and is_due

    def _keep_best(self, places: list[int]) -> None:
        state = self.layers.state_dict() | self.average.mean
        if len(places) == len(self.members):
            for name, tensor in state.items():
                self.best[name].copy_(tensor)
            return
        some = torch.tensor(places, device=self.device)
        for name, tensor in state.items() if places else ():
            if not _is_shared(name):
                self.best[name].index_copy_(0, some, tensor.index_select(0, some))

    def _let_go(self) -> None:
        """Remove finished members from the stack, so that they cost nothing more.

        Captured steps must be captured again, and their kernels compiled, for another number of members. There, members
        leave only when half of them are finished.
        """
        staying = []
        for place, member in enumerate(self.members):
            if not self.runs[member].is_finished:
                staying.append(place)
            elif member not in self.finished:
                self.finished[member] = {
                    name: tensor if _is_shared(name) or not isinstance(self.model, Stack) else tensor[place].clone()
                    for name, tensor in self.best.items()
                }
        gone = len(self.members) - len(staying)
        if gone == 0 or (self.why_not_capture is None and staying and gone < len(staying)):
            return
        self.members = [self.members[place] for place in staying]
        self.optimizer.zero_grad()
        if not self.members:  # free their memory
            self.best = {}
            self.optimizer.state.clear()
        elif isinstance(self.model, Stack):
            self.model.select(staying)
            self.task.select(staying)
            select_members(self.optimizer, staying)
            self.best = {name: t if _is_shared(name) else t[staying] for name, t in self.best.items()}
            self.average.select(staying)
            self._prepare()

    def results(self, model: nn.Module, runs: Sequence[Run], how: str) -> list[Result]:
        """Return the scores of models at their best epochs."""
        why_not = self.why_not_capture
        capture = "captured in a CUDA graph" if why_not is None else f"not captured: {why_not}"
        with torch.no_grad(), self.autocast:
            scores = [self.task.evaluate(model, PARTS, constant) for constant in (False, True)]
        seconds = time.perf_counter() - self.started
        results = []
        for place, run in enumerate(runs):
            metrics, constant = (
                {part: members[place][1] for part, members in zip(PARTS, by_part, strict=True)} for by_part in scores
            )
            trained = f"{how}; steps {capture}"
            results.append(Result(self.task.metric, run.best_epoch, metrics, constant, run.curve, seconds, how=trained))
        return results

    def tensors(self) -> dict[str, Table]:
        """Return all tensors of a single model's training, by name."""
        tensors: dict[str, Any] = {"generator": self.generator.get_state()}
        for name, tensor in self.layers.state_dict().items():
            tensors |= {f"model.{name}": tensor, f"best.{name}": self.best[name]}
        tensors |= {f"mean.{name}": tensor for name, tensor in self.average.mean.items()}
        for name, parameter in self.layers.named_parameters():
            state = self._adam_state(parameter)
            tensors |= {f"adam.{name}.{key}": torch.as_tensor(value) for key, value in state.items()}
        if self.sharded is not None:
            number, present = self.sharded.num_embeddings, tensors.keys() & set(SHARDED_TENSORS)
            tensors |= {name: DividedRows(tensors[name], number) for name in present}
        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Resume from these tensors; of divided embeddings, this process's rows."""
        self.generator.set_state(tensors["generator"])
        model, best, mean = (
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            for prefix in ("model.", "best.", "mean.")
        )
        self.layers.load_state_dict(model)
        self.average.mean = {name: tensor.to(self.device) for name, tensor in mean.items()}
        for name, tensor in best.items():
            self.best[name].copy_(tensor)
        for name, parameter in self.layers.named_parameters():
            keys = ("step", "exp_avg", "exp_avg_sq")
            state = {key: tensors[f"adam.{name}.{key}"].to(self.device) for key in keys}
            self._adam_state(parameter).update(state)
        if self.row_optimizer is not None:
            for rows in self.row_optimizer.state.values():
                rows["step"] = int(rows["step"])

    def _adam_state(self, parameter: nn.Parameter) -> dict[str, Any]:
        has_rows = self.row_optimizer is not None and parameter is self.row_optimizer.param_groups[0]["params"][0]
        state: dict[str, Any] = (self.row_optimizer if has_rows else self.optimizer).state[parameter]  # type: ignore[union-attr]
        return state


def _is_shared(name: str) -> bool:
    return name.rpartition(".")[2] == SHARED
