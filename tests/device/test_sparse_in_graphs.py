"""Sparse tensors in graphs: replays fill the memory of the first run, and restoring keeps it in place."""

from __future__ import annotations

import torch

import graphdoctor
from graphdoctor.target import snapshot


def test_sparse_gradients_of_an_embedding_are_captured_and_replayed_right() -> None:
    embedding = torch.nn.Embedding(20, 8, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)

    def step(places: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = embedding(places).pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    places = torch.randint(0, 20, (6,))
    report = graphdoctor.analyze(step, places, device="emulated", strategies=())
    assert report.verdict == "safe"


def test_restoring_a_sparse_tensor_leaves_its_parts_where_a_graph_reads_them() -> None:
    for sparse in (torch.eye(4).to_sparse(), torch.eye(4).to_sparse_csr()):
        address = sparse.values().data_ptr()
        before = snapshot({"sparse": sparse})
        sparse.values().mul_(2)
        before.restore()
        assert sparse.values().data_ptr() == address
        assert torch.equal(sparse.to_dense(), torch.eye(4))


def test_a_sparse_tensor_that_was_given_other_parts_gets_its_own_back() -> None:
    sparse = torch.eye(4).to_sparse()
    address = sparse.values().data_ptr()
    before = snapshot({"sparse": sparse})
    sparse.add_(torch.ones(4, 4).to_sparse())
    assert sparse._nnz() == 16
    before.restore()
    assert (sparse._values().data_ptr(), sparse._nnz()) == (address, 4)
    assert torch.equal(sparse.to_dense(), torch.eye(4))
