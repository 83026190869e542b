"""Columns of pandas, Polars and Arrow, and lists of OmegaConf, wherever a loader takes a sequence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, MutableSequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader, NewNode
from gigl_loader.arrays import plain_values
from gigl_loader.sampling.khop import read_num_neighbors
from gigl_loader.splits import split_edges, split_nodes
from tests.support.pyg_graphs import same_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


ROOT = Path(__file__).parents[2]
_PANDAS = ROOT / "build/pandas"
pd: Any = None
with suppress(ImportError):  # Lies apart: with it, each process that imports torch would import it.
    pd = import_module("pandas")


class ListConfig(MutableSequence[Any]):
    """A sequence that is no list, as OmegaConf's."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = list(values)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._values[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def insert(self, index: int, value: Any) -> None:
        self._values.insert(index, value)


def _omegaconf(values: list[Any]) -> Any:
    return pytest.importorskip("omegaconf").OmegaConf.create(values)


FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "array": np.array,
    "tuple": tuple,
    "Polars": pl.Series,
    "Arrow": pa.array,
    "Arrow chunks": lambda values: pa.chunked_array([values[:3], values[3:]]),
    "Arrow dictionary": lambda values: pa.array(values).dictionary_encode(),
    "a sequence": ListConfig,
    "OmegaConf": _omegaconf,
}
_OF_PANDAS: dict[str, Callable[[list[Any]], Any]] = {
    "pandas": lambda values: pd.Series(values, index=range(7, 7 + len(values))),
    "nullable pandas": lambda values: pd.Series(values).convert_dtypes(),
    "pandas on Arrow": lambda values: pd.Series(values).convert_dtypes(dtype_backend="pyarrow"),
    "pandas objects": lambda values: pd.Series(values, dtype=object),
    "pandas index": lambda values: pd.Index(values),  # noqa: PLW0108 - pandas may not be there
}
FORMS |= _OF_PANDAS if pd is not None else {}
NODES = 40
SEEDS = [3, 30, 4, 11, 5, 9]
TARGETS = [2, 6, 1, 3, 9, 7]
TIMES = [20, 30, 40, 25, 35, 39]
OPTIONS: dict[str, Any] = {"num_workers": 0, "seed": 1, "batch_size": 4, "device": "cpu"}


def _graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES, (2, 300), generator=generator)
    return Data(x=torch.rand(NODES, 2), edge_index=edges, born=torch.arange(NODES))


@pytest.fixture(scope="module")
def dataset() -> Iterator[DistDataset]:
    with DistDataset.from_pyg(_graph(), time_attr="born") as dataset:
        yield dataset


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Callable[[list[Any]], Any]:
    return FORMS[request.param]


def _same_batches(one: Any, other: Any) -> bool:
    with one, other:
        return all(same_batch(*pair) for pair in zip(one, other, strict=True))


def test_seeds_times_and_weights(dataset: DistDataset, form: Any) -> None:
    plain: dict[str, Any] = {"input_time": torch.tensor(TIMES), "time_attr": "born"}
    weights = [0.5, 1.0, 2.0, 0.0, 3.0, 1.5]
    assert _same_batches(
        DistNeighborLoader(dataset, [3], torch.tensor(SEEDS), **plain, **OPTIONS),
        DistNeighborLoader(
            dataset, form([3]), form(SEEDS), input_time=form(TIMES), time_attr="born", **OPTIONS
        ),
    )
    assert _same_batches(
        DistNeighborLoader(
            dataset, [3], torch.tensor(SEEDS), seed_weights=torch.tensor(weights).double(), **OPTIONS
        ),
        DistNeighborLoader(
            dataset,
            [3],
            ("node", form(SEEDS)),
            seed_weights=form(weights),
            **OPTIONS,
        ),
    )


def test_links_labels_times_and_negatives(dataset: DistDataset, form: Any) -> None:
    links, labels = torch.tensor([SEEDS, TARGETS]), torch.tensor([1, 0, 2, 1, 1, 0])
    assert _same_batches(
        DistLinkNeighborLoader(dataset, [3], links, edge_label=labels, neg_sampling="binary", **OPTIONS),
        DistLinkNeighborLoader(
            dataset,
            form([3]),
            (form(SEEDS), form(TARGETS)),
            edge_label=form(labels.tolist()),
            neg_sampling="binary",
            **OPTIONS,
        ),
    )
    timed: dict[str, Any] = {"time_attr": "born", **OPTIONS}
    negatives = [[1], [2], [3], [4], [5], [6]]
    assert _same_batches(
        DistLinkNeighborLoader(
            dataset,
            [3],
            links,
            edge_label_time=torch.tensor(TIMES),
            neg_sampling=torch.tensor(negatives),
            **timed,
        ),
        DistLinkNeighborLoader(
            dataset,
            [3],
            ListConfig([form(SEEDS), form(TARGETS)]),
            edge_label_time=form(TIMES),
            neg_sampling=ListConfig(negatives),
            **timed,
        ),
    )


def test_calls(dataset: DistDataset, form: Any) -> None:
    with DistNeighborLoader(dataset, [3], **OPTIONS) as loader:
        assert same_batch(loader.sample(form(SEEDS)), loader.sample(SEEDS))
        assert same_batch(loader(form(SEEDS)), loader(SEEDS))
    with dataset.sampler([3]) as sampler:
        new = NewNode(features={"x": torch.ones(2), "born": 3}, edges=form(SEEDS))
        assert len(sampler.sample(new=[new]).n_id) > 1
    assert dataset.partition_of(form(SEEDS)).tolist() == [0] * len(SEEDS)
    assert dataset.original_ids(form(SEEDS)) == SEEDS
    assert {*split_nodes(form(SEEDS), form([0.5, 0.5]))} == {"train", "val"}
    assert {*split_edges((form(SEEDS), form(TARGETS)), [1.0])} == {"train"}
    assert [*read_num_neighbors(dataset.schema, form([3, 2])).values()] == [(3, 2)]


def test_texts(form: Any) -> None:
    values = plain_values("input_nodes", form(["a", "b", "a", "c"]))
    assert [str(each) for each in values] == ["a", "b", "a", "c"]


MISSING: dict[str, Any] = {
    "Polars": pl.Series([1, 2, None]),
    "Arrow": pa.array([1, 2, None]),
    "Arrow chunks": pa.chunked_array([[1, 2], [None]]),
    "texts": pa.array(["a", "b", None]),
}
if pd is not None:
    MISSING["pandas"] = pd.Series([1, 2, None])
    MISSING["nullable pandas"] = pd.Series([1, 2, None], dtype="Int64")
    MISSING["texts of pandas"] = pd.Series(["a", "b", None])


@pytest.mark.parametrize("values", MISSING.values(), ids=MISSING)
def test_an_entry_that_is_missing_is_named(dataset: DistDataset, values: Any) -> None:
    with pytest.raises(ValueError, match=r"^input_nodes: entry 2 is missing$"):
        DistNeighborLoader(dataset, [3], values, **OPTIONS)
    with pytest.raises(ValueError, match=r"^edge_label_index: entry 2 is missing$"):
        DistLinkNeighborLoader(dataset, [3], (values, [1, 2, 3]), **OPTIONS)
    with pytest.raises(ValueError, match=r"^input_time: entry 2 is missing$"):
        DistNeighborLoader(dataset, [3], [1, 2, 3], time_attr="born", input_time=values, **OPTIONS)


@pytest.mark.parametrize(
    "values",
    [pl.Series([1.5, 2.0]), pa.array([1.5, 2.0]), (1.5, 2.0), pa.array([[1], [2]])],
    ids=lambda values: type(values).__name__,
)
def test_columns_of_other_values_are_no_seeds(dataset: DistDataset, values: Any) -> None:
    with pytest.raises(TypeError, match=r"^(node ids must be integers|input_nodes as a tuple)"):
        DistNeighborLoader(dataset, [3], values, **OPTIONS)


TABLES: dict[str, Any] = {
    "Polars": pl.DataFrame({"src": [3, 30], "dst": [4, 11]}),
    "Arrow": pa.table({"src": [3, 30], "dst": [4, 11]}),
}
if pd is not None:
    TABLES["pandas"] = pd.DataFrame({"src": [3, 30], "dst": [4, 11]})


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_of_links_would_be_read_the_wrong_way_round(dataset: DistDataset, table: Any) -> None:
    """A table of two rows has the shape of links, [2, M]: its rows are links."""
    with pytest.raises(TypeError, match=r"is a table: pass the columns of its ends"):
        DistLinkNeighborLoader(dataset, [3], table, **OPTIONS)
    with DistLinkNeighborLoader(dataset, [3], (table["src"], table["dst"]), **OPTIONS) as loader:
        assert len(next(loader).input_id) == 2


DATES: dict[str, Any] = {
    "Polars": lambda dates: pl.Series(dates).str.to_datetime(),
    "Polars with a zone": lambda dates: pl.Series(dates).str.to_datetime(time_zone="UTC"),
    "Arrow": lambda dates: pa.array(np.array(dates, "M8[us]")),
    "Arrow with a zone": lambda dates: pa.array(np.array(dates, "M8[us]")).cast(
        pa.timestamp("us", "Europe/Vienna")
    ),
}
if pd is not None:
    DATES["pandas"] = lambda dates: pd.Series(pd.to_datetime(dates))


@pytest.mark.parametrize("form", DATES.values(), ids=DATES)
def test_dates(form: Any) -> None:
    data = _graph()
    data.born = np.array("2020-01-01", "M8[D]") + np.arange(NODES)
    given = ["2020-01-20", "2020-01-30"]
    with (
        DistDataset.from_pyg(data, time_attr="born") as dataset,
        DistNeighborLoader(
            dataset, [3], [3, 30], time_attr="born", input_time=form(given), **OPTIONS
        ) as loader,
    ):
        assert loader.sample([1], time=form(given[:1])).seed_time.tolist() == [1579478400 * 10**9]
        assert next(loader).seed_time.tolist() == [1579478400 * 10**9, 1580342400 * 10**9]


def test_memory_that_is_read_only(dataset: DistDataset) -> None:
    """As that of a file that is mapped: torch warns of it, and warnings are errors here."""
    links = np.array([SEEDS, TARGETS])
    links.flags.writeable = False
    with DistLinkNeighborLoader(dataset, [3], links, edge_label=links[0], **OPTIONS) as loader:
        assert next(loader).edge_label.tolist() == SEEDS[:4]


_PROGRAM = """
import pandas as pd
from gigl_loader.arrays import plain_values
for dtype in (None, "Int64", "int64[pyarrow]", object, "int32"):
    array = plain_values("ids", pd.Series([3, 30, 4], index=[7, 8, 9], dtype=dtype))
    print(array.tolist(), array.dtype.kind)
print(plain_values("ids", pd.Index([3, 30])).tolist())
for dtype in (None, "string", "category"):
    print(plain_values("ids", pd.Series(["a", "b"], dtype=dtype)).tolist())
for values in (pd.Series([1, None], dtype="Int64"), pd.Series([1, None]), pd.Series(["a", None])):
    try:
        plain_values("ids", values)
    except ValueError as error:
        print(error)
"""


def _with_pandas(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env=os.environ | {"PYTHONPATH": str(_PANDAS)},
    )


needs_pandas = pytest.mark.skipif(
    pd is not None or not _PANDAS.exists(), reason="needs pandas, which make puts into build/pandas"
)


@needs_pandas
def test_columns_of_pandas() -> None:
    done = _with_pandas("-c", _PROGRAM)
    assert done.returncode == 0, done.stderr
    expected = [*["[3, 30, 4] i"] * 5, "[3, 30]", *["['a', 'b']"] * 3, *["ids: entry 1 is missing"] * 3]
    assert done.stdout.splitlines() == expected


@needs_pandas
@pytest.mark.slow
def test_columns_of_pandas_in_a_loader() -> None:
    """What the tests above do with the other kinds of columns, in a process that has pandas."""
    done = _with_pandas("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "pandas", str(Path(__file__)))
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split(" passed")[0].split()[-1]) > len(_OF_PANDAS)
