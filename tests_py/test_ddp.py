"""sc_matmul inside DistributedDataParallel: two processes on gloo average its gradients."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from support import randn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scmp_kernels import sc_matmul

ROWS, PROCESSES = 6, 2


class Layer(nn.Module):
    def __init__(self, rows, columns, seed, **knobs):
        super().__init__()
        self.weight = nn.Parameter(randn(rows, columns, seed=seed) / columns**0.5)
        self.bias = nn.Parameter(torch.zeros(rows))
        self.knobs = knobs

    def forward(self, x):
        return sc_matmul(x, self.weight, **self.knobs) + self.bias


def make_model():
    return nn.Sequential(Layer(8, 16, 1, stoc_len=64), nn.GELU(), Layer(4, 8, 2, chunk_d=4))


def step(model, x):
    """Output and gradients of one backward pass."""
    model.zero_grad()
    out = model(x)
    out.square().mean().backward()
    return out.detach(), [p.grad.clone() for p in model.parameters()]


def work(rank, folder):
    torch.set_num_threads(1)
    where = f"file://{folder}/init"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=PROCESSES)
    x = randn(PROCESSES * ROWS, 16)[rank * ROWS : (rank + 1) * ROWS]
    model = DistributedDataParallel(make_model())
    results = [step(model, x) for _ in range(2)]
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_gradients_are_those_of_the_whole_batch(tmp_path):
    mp.spawn(work, (str(tmp_path),), nprocs=PROCESSES)
    x, model = randn(PROCESSES * ROWS, 16), make_model()
    whole_out, whole = step(model, x)
    parts = [step(model, x[rank * ROWS : (rank + 1) * ROWS]) for rank in range(PROCESSES)]
    averages = [sum(grads) / PROCESSES for grads in zip(*(g for _, g in parts), strict=True)]
    for rank in range(PROCESSES):
        for out, grads in torch.load(tmp_path / f"{rank}.pt"):
            # A row's bits do not depend on the batch around it.
            assert torch.equal(out, parts[rank][0])
            assert torch.equal(out, whole_out[rank * ROWS : (rank + 1) * ROWS])
            for grad, average, one_process in zip(grads, averages, whole, strict=True):
                assert torch.equal(grad, average)
                torch.testing.assert_close(grad, one_process)
