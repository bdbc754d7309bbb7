"""Counters of a service, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # of the histogram
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts requests by path and status, their seconds, and the batches of the model.

    Paths are those of the service, all others count as "other", so that no caller can add names.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: dict[str, tuple[list[int], float]] = {}
        self.batches: Counter[str] = Counter()
        self.items: Counter[str] = Counter()
        self.in_flight = 0
        self.waiting: Callable[[], int] = lambda: 0

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self.requests[path, status] += 1
        buckets, total = self.seconds.setdefault(path, ([0] * (len(SECONDS) + 1), 0.0))
        buckets[bisect_left(SECONDS, seconds)] += 1
        self.seconds[path] = buckets, total + seconds

    def count_batch(self, job: str, size: int) -> None:
        """Count a pass of the model."""
        self.batches[job] += 1
        self.items[job] += size

    def text(self) -> str:
        """Return all values."""
        lines = ["# HELP rgat_requests_total Answered requests.", "# TYPE rgat_requests_total counter"]
        for (path, status), count in sorted(self.requests.items()):
            lines.append(f'rgat_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += ["# HELP rgat_request_seconds Time to the answer.", "# TYPE rgat_request_seconds histogram"]
        for path, (buckets, total) in sorted(self.seconds.items()):
            so_far = 0
            for limit, count in zip((*SECONDS, "+Inf"), buckets, strict=True):
                so_far += count
                lines.append(f'rgat_request_seconds_bucket{{path="{path}",le="{limit}"}} {so_far}')
            lines.append(f'rgat_request_seconds_sum{{path="{path}"}} {total:.6f}')
            lines.append(f'rgat_request_seconds_count{{path="{path}"}} {so_far}')
        for name, values, what in (
            ("rgat_batches_total", self.batches, "Passes of the model."),
            ("rgat_batch_items_total", self.items, "Requests answered in these passes."),
        ):
            lines += [f"# HELP {name} {what}", f"# TYPE {name} counter"]
            lines += [f'{name}{{job="{job}"}} {count}' for job, count in sorted(values.items())]
        for name, value, what in (
            ("rgat_requests_in_flight", self.in_flight, "Requests that are not answered yet."),
            ("rgat_requests_waiting", self.waiting(), "Requests that wait for the model."),
        ):
            lines += [f"# HELP {name} {what}", f"# TYPE {name} gauge", f"{name} {value}"]
        return "\n".join(lines) + "\n"
