"""Train the models of a unit in several processes of a Ray cluster, which join one group of `torch.distributed`.

A placement group reserves a bundle of resources for each process. A task in it starts the processes, and Ray repeats
the task if one of them is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from rgat.experiments.records import Record
from rgat.experiments.units import Unit, run_encoded
from rgat.training.distributed import choose_backend, process_group

stores: Any = dist  # whose stores have no type


class Worker:
    """One of the processes, as a Ray actor."""

    def __init__(self) -> None:
        self.store: Any = None

    def open_store(self, number: int) -> tuple[str, int]:
        """Start the store where the processes meet, and return its address."""
        host = _ray().util.get_node_ip_address()
        self.store = stores.TCPStore(host, 0, number, is_master=True, wait_for_workers=False)
        return host, self.store.port

    def run(
        self, rank: int, number: int, address: tuple[str, int], group: Sequence[Unit], content: bytes, device: str
    ) -> list[Record]:
        """Join the other processes, and run the units of one stack with them."""
        store = self.store or stores.TCPStore(*address, number, is_master=False)
        # Ray shows each process its own GPU alone.
        own, backend = choose_backend(0, 1, torch.cuda.device_count(), torch.device(device))
        with process_group(own, backend, store=store, rank=rank, world_size=number):
            return run_encoded(group, content, device)


def run_together(group: Sequence[Unit], content: bytes, device: str) -> list[Record]:
    """Run the units of one stack in one process for each bundle of this task's placement group."""
    ray = _ray()
    bundles, shared = ray.util.get_current_placement_group(), ray.put(content)
    bundle = bundle_of(device)
    start = ray.remote(num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0))(Worker)
    number = bundles.bundle_count
    workers = [start.options(scheduling_strategy=_within(bundles, place)).remote() for place in range(number)]
    try:
        address = ray.get(workers[0].open_store.remote(number))
        results = [
            worker.run.remote(rank, number, address, group, shared, device) for rank, worker in enumerate(workers)
        ]
        waiting = results
        while waiting:
            finished, waiting = ray.wait(waiting)
            ray.get(finished)  # raises if a process was lost; the others fail later, and their records with them
        records: list[Record] = ray.get(results[0])
        return records
    finally:
        for worker in workers:
            ray.kill(worker)


def _ray() -> Any:
    import ray
    import ray.util.scheduling_strategies

    return ray


def _within(bundles: Any, place: int) -> Any:
    return _ray().util.scheduling_strategies.PlacementGroupSchedulingStrategy(bundles, place)


def bundle_of(device: str) -> dict[str, int]:
    """Return the resources of one process."""
    return {"CPU": 1} if device == "cpu" else {"CPU": 1, "GPU": 1}


def run_groups(
    groups: Sequence[Sequence[Unit]], content: Any, device: str, number: int, retries: int
) -> Iterator[list[Record]]:
    """Run stacks on the connected cluster, each in ``number`` processes, and yield the records of each.

    The content is that of `rgat.experiments.folds.encode`, as a Ray object.
    """
    ray = _ray()
    bundle = bundle_of(device)
    for name in bundle:
        available = int(ray.cluster_resources().get(name, 0))
        if available < number:
            raise ValueError(
                f"`processes_per_run` must be at most the number of {name}s in the Ray cluster, {available}, "
                f"got {number}"
            )
    task = ray.remote(num_cpus=0, max_retries=retries, retry_exceptions=[ray.exceptions.RayActorError])(run_together)
    running = {}
    for group in groups:
        bundles = ray.util.placement_group([bundle] * number)
        running[task.options(scheduling_strategy=_within(bundles, 0)).remote(group, content, device)] = bundles
    while running:
        (finished,), _ = ray.wait(list(running), num_returns=1)
        try:
            yield ray.get(finished)
        finally:
            ray.util.remove_placement_group(running.pop(finished))
