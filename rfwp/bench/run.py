"""From options to an outcome."""

from collections.abc import Callable
from typing import Any

from rfwp.bench.ops import bench_ops
from rfwp.bench.options import OpsOptions, PlotOptions, RLOptions, TrainOptions
from rfwp.bench.records import Outcome, Row, read
from rfwp.bench.rl import bench_rl
from rfwp.bench.train import bench_train
from rfwp.errors import InvalidInput
from rfwp.report.plots import plot_scaling


def run_benchmark(options: OpsOptions | TrainOptions | RLOptions | PlotOptions, say: Callable[[str], None]) -> Outcome:
    if isinstance(options, OpsOptions):
        return bench_ops(options, say)
    if isinstance(options, RLOptions):
        return bench_rl(options, say)
    return bench_train(options, say) if isinstance(options, TrainOptions) else draw(options)


def draw(options: PlotOptions) -> Outcome:
    """The rows of a file whose shape was timed with several values of the size."""
    rows = [row for row in read(options.file) if options.scaling in row.sizes and row.ms is not None]
    values: dict[Any, set[int]] = {}
    for row in rows:
        values.setdefault(_others(row, options.scaling), set()).add(row.sizes[options.scaling])
    chosen = [row for row in rows if len(values[_others(row, options.scaling)]) > 1 and not row.what.startswith("train")]
    if not chosen:
        raise InvalidInput(
            f"{options.file} has no run with several {options.scaling}; make one: rfwp bench ops --scaling {options.scaling}"
        )
    path = options.file.with_name(f"{options.file.stem}-{options.scaling}")
    return Outcome(chosen, [], [], plot_scaling(chosen, options.scaling, path, options.file.stem))


def _others(row: Row, size: str) -> Any:
    """What stays the same while a size is varied."""
    return row.shape, tuple((name, value) for name, value in row.sizes.items() if name != size)
