"""Predict who uploads what next: links in time, with nothing of the future in any batch.

python examples/temporal.py [--epochs 3] [--docs /usr/share/doc]

On Debian, the changelogs of the installed packages say which maintainer uploaded which package when.
Elsewhere, uploads are made by a rule: each maintainer has six packages and works on two of them at a time,
but every fifth upload is of any package. The last fifth is predicted: for each upload, the package among 50
others, from what was uploaded before it.
"""

import argparse
import gzip
import re
from collections.abc import Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path

import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from gigl_loader import DistDataset, DistLinkNeighborLoader

UPLOADS, BACK = ("maintainer", "uploads", "package"), ("package", "rev_uploads", "maintainer")
SIGNED = re.compile(r"^ -- .* <(.+)>  (.+)$", re.MULTILINE)


def changelogs(docs: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the uploads in Debian changelogs: maintainer, package, seconds since 1970."""
    for path in sorted(docs.glob("*/changelog.Debian.gz")):
        if path.parent.is_symlink():
            continue
        for maintainer, date in SIGNED.findall(gzip.decompress(path.read_bytes()).decode(errors="replace")):
            with suppress(ValueError):  # A few dates of long ago are none.
                yield maintainer, path.parent.name, int(parsedate_to_datetime(date).timestamp())


def made_uploads(count: int = 12_000) -> Iterator[tuple[str, str, int]]:
    """Yield uploads by a rule, for machines without changelogs."""
    random = torch.Generator().manual_seed(0)
    for time in range(count):
        maintainer = int(torch.randint(150, (1,), generator=random))
        turn, other = int(time // 1500) % 3, int(torch.randint(900, (1,), generator=random))
        package = maintainer * 6 + 2 * turn + time % 2 if time % 5 else other
        yield f"m{maintainer}", f"p{package}", time


def graph_of(uploads: list[tuple[str, str, int]]) -> HeteroData:
    """Return the graph of uploads, in order of time, which their edges have as ``t``."""
    uploads.sort(key=lambda upload: upload[2])
    data = HeteroData()
    ends = []
    for place, node_type in enumerate(("maintainer", "package")):
        numbers = {name: number for number, name in enumerate(sorted({each[place] for each in uploads}))}
        data[node_type].num_nodes = len(numbers)
        ends.append([numbers[upload[place]] for upload in uploads])
    times = torch.tensor([upload[2] for upload in uploads])
    data[UPLOADS].edge_index, data[UPLOADS].t = torch.tensor(ends), times
    data[BACK].edge_index, data[BACK].t = torch.tensor(ends).flip(0), times
    return data


class Model(torch.nn.Module):
    """An embedding of every node, and one layer over the latest uploads that a tree may know."""

    def __init__(self, data: HeteroData, size: int = 32) -> None:
        super().__init__()
        self.embed = torch.nn.ModuleDict(
            {kind: torch.nn.Embedding(data[kind].num_nodes, size) for kind in data.node_types}
        )
        self.conv = HeteroConv({kind: SAGEConv((size, size), size) for kind in (UPLOADS, BACK)})

    def forward(self, batch: HeteroData) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores of links [M] and of their negatives [M, amount]."""
        x = {kind: self.embed[kind](batch[kind].n_id) for kind in batch.node_types}
        h = {kind: x[kind] + out for kind, out in self.conv(x, batch.edge_index_dict).items()}
        maintainer = h["maintainer"][batch["maintainer"].src_index]
        package = h["package"][batch["package"].dst_pos_index]
        others = h["package"][batch["package"].dst_neg_index]
        return (maintainer * package).sum(-1), (maintainer[:, None] * others).sum(-1)


def main(epochs: int, docs: Path) -> tuple[float, float]:
    """Train, print a line per epoch; return the MRR of the last fifth, and that of a guess by popularity."""
    torch.manual_seed(0)
    uploads = list(changelogs(docs))
    data = graph_of(uploads if len(uploads) > 2_000 else list(made_uploads()))
    links, times = data[UPLOADS].edge_index, data[UPLOADS].t
    print(", ".join(f"{data[kind].num_nodes} {kind}s" for kind in data.node_types), f"{len(times)} uploads")
    cut = len(times) * 4 // 5
    popular = torch.bincount(links[1, :cut], minlength=data["package"].num_nodes).float()
    dataset = DistDataset.from_pyg(data, time_attr="t")
    model = Model(data)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options = {"temporal_strategy": "last", "seed": 1, "num_workers": 0, "device": "cpu"}

    def loader(which: slice, amount: int, *, shuffle: bool) -> DistLinkNeighborLoader:
        return DistLinkNeighborLoader(
            dataset,
            {UPLOADS: [3], BACK: [10]},
            (UPLOADS, links[:, which]),
            edge_label_time=times[which],
            neg_sampling={"mode": "triplet", "amount": amount},
            time_attr="t",
            temporal_comparison="<",  # No tree has its own upload, nor others of that moment.
            batch_size=256,
            shuffle=shuffle,
            **options,
        )

    ours = guess = 0.0
    with loader(slice(cut), 5, shuffle=True) as train, loader(slice(cut, None), 50, shuffle=False) as test:
        for epoch in range(epochs):
            for batch in train:
                score, others = model(batch)
                loss = torch.nn.functional.softplus(others - score[:, None]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            ranks, guesses = [], []
            with torch.no_grad():
                for batch in test:
                    score, others = model(batch)
                    ranks.append(1 + (others >= score[:, None]).sum(1))
                    packages = batch["package"].n_id
                    index = batch["package"].dst_pos_index, batch["package"].dst_neg_index
                    known, unknown = (popular[packages[each]] for each in index)
                    guesses.append(1 + (unknown >= known[:, None]).sum(1))
            ours, guess = ((1 / torch.cat(each)).mean().item() for each in (ranks, guesses))
            print(f"epoch {epoch}: loss {loss:.3f}, MRR {ours:.3f} (by popularity {guess:.3f})")
    return ours, guess


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--docs", type=Path, default=Path("/usr/share/doc"), help="where changelogs lie")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.docs)
