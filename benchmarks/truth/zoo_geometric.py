"""torch-geometric's convolutions, poolings, aggregations and models, on a small random graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from zoo import Built, Case, Inputs, built

# torch-geometric asks how torch was built when it is imported, which starts CUDA: nothing could fork afterwards.
with mock.patch("torch.__config__.show", return_value="USE_MKL=ON"):
    import torch_geometric.nn as gnn
    from torch_geometric.nn import aggr, conv, norm, pool

NODES, EDGES, WIDTH, RELATIONS, FEATURES, GRAPHS = 24, 80, 16, 3, 4, 2
MODELS = ("GCN", "GraphSAGE", "GIN", "GAT", "PNA", "EdgeCNN", "LINKX", "LightGCN", "GraphUNet")
MODELS += ("AttentiveFP", "RECT_L", "LabelPropagation")
POOLS = ("TopKPooling", "SAGPooling", "ASAPooling", "EdgePooling", "PANPooling")

# What constructors and forwards mean by a name, the same nearly everywhere.
SETTINGS: dict[str, Any] = {
    "in_channels": WIDTH,
    "out_channels": WIDTH,
    "hidden_channels": WIDTH,
    "channels": WIDTH,
    "in_dim": WIDTH,
    "hidden_size": WIDTH,
    "embedding_dim": WIDTH,
    "num_features": WIDTH,
    "num_nodes": NODES,
    "num_layers": 2,
    "num_relations": RELATIONS,
    "num_types": RELATIONS,
    "num_edge_types": RELATIONS,
    "num_node_types": 2,
    "edge_dim": FEATURES,
    "edge_attr_emb_dim": FEATURES,
    "edge_type_emb_dim": FEATURES,
    "dim": 3,
    "kernel_size": 3,
    "K": 2,
    "k": 4,
    "heads": 2,
    "num_heads": 2,
    "num_kernels": 2,
    "num_layers_deep": 2,
    "alpha": 0.1,
    "theta": 0.5,
    "layer": 1,
    "s": 4,
    "space_dimensions": 3,
    "propagate_dimensions": 4,
    "num_timesteps": 2,
    "depth": 2,
    "act": torch.relu,
    "aggregators": ["mean", "max", "std"],
    "scalers": ["identity", "amplification"],
    "channel_list": [WIDTH, WIDTH, WIDTH],
    "num_seed_points": 2,
    "processing_steps": 2,
    "num_classes": 4,
    "num_groups": 2,
    "groups": 2,
    "filter_size": 2,
    "q": 0.5,
    "max_num_elements": NODES,
    "patch_size": 4,
    "first_aggr": True,
    "aggrs": ["mean", "max"],
    "aggr": "mean",
}
PERCEPTRONS: dict[str, Callable[[], torch.nn.Module]] = {
    "nn": lambda: perceptron(WIDTH),
    "local_nn": lambda: perceptron(WIDTH + 3),
    "global_nn": lambda: perceptron(WIDTH),
    "gate_nn": lambda: torch.nn.Linear(WIDTH, 1),
    "mlp": lambda: perceptron(WIDTH),
    "lin": lambda: torch.nn.Linear(WIDTH, WIDTH),
    "conv": lambda: gnn.GCNConv(WIDTH, WIDTH),
}


def perceptron(width: int, out: int = WIDTH) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(width, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, out)
    )


# Perceptrons whose sizes depend on what their layer joins.
OWN: dict[str, Callable[[], torch.nn.Module]] = {
    "EdgeConv": lambda: gnn.EdgeConv(perceptron(2 * WIDTH)),
    "DynamicEdgeConv": lambda: gnn.DynamicEdgeConv(perceptron(2 * WIDTH), k=4),
    "NNConv": lambda: gnn.NNConv(WIDTH, WIDTH, perceptron(FEATURES, WIDTH * WIDTH)),
    "PPFConv": lambda: gnn.PPFConv(perceptron(WIDTH + 4), perceptron(WIDTH)),
    "PNAConv": lambda: gnn.PNAConv(
        WIDTH, WIDTH, SETTINGS["aggregators"], SETTINGS["scalers"], torch.ones(8, dtype=torch.long)
    ),
    "PNA": lambda: gnn.PNA(
        WIDTH,
        WIDTH,
        2,
        aggregators=SETTINGS["aggregators"],
        scalers=SETTINGS["scalers"],
        deg=torch.ones(8, dtype=torch.long),
    ),
    "PointTransformerConv": lambda: gnn.PointTransformerConv(WIDTH, WIDTH),
    "PointGNNConv": lambda: gnn.PointGNNConv(
        perceptron(WIDTH, 3), perceptron(WIDTH + 3), perceptron(WIDTH)
    ),
    "GMMConv": lambda: gnn.GMMConv(WIDTH, WIDTH, dim=FEATURES, kernel_size=3),
    "SplineConv": lambda: gnn.SplineConv(WIDTH, WIDTH, dim=FEATURES, kernel_size=3),
}


def cases() -> Iterator[Case]:
    groups = {
        "convolution": (conv, [name for name in dir(conv) if name.endswith("Conv")]),
        "aggregation": (aggr, [name for name in dir(aggr) if name.endswith("Aggregation")]),
        "normalization": (norm, [name for name in dir(norm) if name.endswith("Norm")]),
        "pooling": (pool, POOLS),
        "model": (gnn, MODELS),
    }
    for kind, (module, names) in groups.items():
        for name in names:
            if name != "Aggregation" and inspect.isclass(getattr(module, name, None)):
                yield Case(name, "geometric", kind, name, partial(build, getattr(module, name)))


def build(layer: type[torch.nn.Module]) -> Built:
    model = made(layer)
    names = [
        name
        for name, each in inspect.signature(model.forward).parameters.items()
        if name in DRAWN and (each.default is each.empty or name in WANTED)
    ]
    last: Exception = RuntimeError("its forward takes nothing that a graph has")
    wanted = [each for each in names if each in WANTED]
    for left_out in ([], *([each] for each in wanted), wanted):
        taken = [each for each in names if each not in left_out]
        try:
            return built(model, partial(draw, tuple(taken), layer.__name__))
        except Exception as error:
            last = error
    raise last


def made(layer: type[torch.nn.Module]) -> torch.nn.Module:
    if layer.__name__ in OWN:
        return OWN[layer.__name__]()
    given: dict[str, Any] = {}
    for name, each in inspect.signature(layer.__init__).parameters.items():
        if name in PERCEPTRONS and each.default is each.empty:
            given[name] = PERCEPTRONS[name]()
        elif name in SETTINGS and (each.default is each.empty or name == "edge_dim"):
            given[name] = SETTINGS[name]
    return layer(**given)


# Left at their defaults, these often do nothing.
WANTED = ("edge_attr", "edge_weight", "batch", "edge_type", "type_vec")


def draw(names: tuple[str, ...], layer: str) -> Inputs:
    return {name: SPECIAL.get((name, layer), DRAWN[name])() for name in names}


def edges() -> torch.Tensor:
    return torch.randint(0, NODES, (2, EDGES))


def of_graphs(count: int = NODES) -> torch.Tensor:
    """Which graph each node belongs to, sorted, with the same numbers of nodes on each draw."""
    return torch.arange(GRAPHS).repeat_interleave(count // GRAPHS)


DRAWN: dict[str, Callable[[], Any]] = {
    "x": lambda: torch.rand(NODES, WIDTH),
    "x_0": lambda: torch.rand(NODES, WIDTH),
    "edge_index": edges,
    "pos_edge_index": edges,
    "neg_edge_index": edges,
    "hyperedge_index": lambda: torch.stack([edges()[0], torch.randint(0, 8, (EDGES,))]),
    "edge_type": lambda: torch.randint(0, RELATIONS, (EDGES,)),
    "type_vec": lambda: torch.randint(0, RELATIONS, (NODES,)),
    "msg": lambda: torch.rand(NODES, WIDTH),
    "node_type": lambda: torch.randint(0, 2, (NODES,)),
    "edge_attr": lambda: torch.rand(EDGES, FEATURES),
    "edge_weight": lambda: torch.rand(EDGES),
    "edge_feats": lambda: torch.rand(EDGES, FEATURES),
    "pos": lambda: torch.rand(NODES, 3),
    "normal": lambda: torch.nn.functional.normalize(torch.rand(NODES, 3), dim=1),
    "batch": of_graphs,
    "index": of_graphs,
    "z": lambda: torch.randint(1, 9, (NODES,)),
}
SPECIAL: dict[tuple[str, str], Callable[[], Any]] = {
    ("x", "DNAConv"): lambda: torch.rand(NODES, 2, WIDTH),
    ("x", "WLConv"): lambda: torch.nn.functional.one_hot(torch.randint(0, 4, (NODES,)), 4),
}
