"""PyTorch's scaled_dot_product_attention on one GPU, causal bf16, forward and backward: the peer of attention_cudnn.

Usage: python3 benchmarks/torch_gpu_attention.py [backend ...]     backends: cudnn flash (default: both)
Rows with dropout generate its masks in the backend.
The sizes are those of src/kernels/cuda/attention/bench_cases.cc. FLOPs count the causal half: 2 products of T^2 / 2 by D
per head forward, 5 backward.
"""
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

SIZES = [
    (4, 32, 32, 2048, 128, 0),
    (4, 32, 8, 2048, 128, 0),
    (1, 32, 8, 8192, 128, 0),
    (8, 12, 12, 1024, 64, 0),
    (4, 32, 32, 2048, 128, 0.1),
    (8, 12, 12, 1024, 64, 0.1),
]
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
CALLS, REPEATS = 8, 10


def seconds(function):
    """Median time of one call, several in a row between two events."""
    for _ in range(3):
        function()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(CALLS):
            function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / CALLS)
    return statistics.median(times)


def measure(backend, batch, heads, kv_heads, length, dim, dropout):
    def tensor(count):
        # [B, S, H, D] in memory, as a projection leaves it.
        shape = (batch, length, count, dim)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()

    q, k, v = tensor(heads), tensor(kv_heads), tensor(kv_heads)

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=heads != kv_heads, dropout_p=dropout
        )

    with sdpa_kernel(BACKENDS[backend]):
        out = forward()
        dout = torch.randn_like(out)
        with torch.no_grad():
            forward_time = seconds(forward)
        backward_time = seconds(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
    flops = 2 * batch * heads * length * length * dim  # two products, halved
    name = f"b{batch}_h{heads}_kv{kv_heads}_s{length}_d{dim}{'_dropout' if dropout > 0 else ''}"
    print(
        f"{backend:6} {name:36} forward {forward_time * 1e6:9.1f} us {flops / forward_time * 1e-12:6.1f} TFLOP/s"
        f"   backward {backward_time * 1e6:9.1f} us {2.5 * flops / backward_time * 1e-12:6.1f} TFLOP/s"
    )


def main():
    torch.manual_seed(7)
    print(f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}")
    for backend in sys.argv[1:] or BACKENDS:
        for size in SIZES:
            try:
                measure(backend, *size)
            except RuntimeError as error:
                print(f"{backend} {size}: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
