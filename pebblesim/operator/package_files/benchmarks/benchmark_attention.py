"""Both passes beside PyTorch's attention, for `kernels benchmark`."""

import torch
from kernels.benchmark import Benchmark


class Attention(Benchmark):
    seed = 0

    def setup(self):
        self.x = [torch.randn(1, 8192, 16, $first, device=self.device, dtype=torch.bfloat16) for _ in range(3)]
        for each in self.x:
            each.requires_grad_()
        self.grad = torch.randn_like(self.x[0])
        self.out = torch.empty_like(self.x[0])

    def benchmark_forward(self):
        self.out = self.kernel.flash_attn_func(*self.x, causal=True).detach()

    def verify_forward(self):
        x = (each.transpose(1, 2) for each in self.x)
        return torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True).transpose(1, 2).detach()

    def benchmark_with_gradients(self):
        out = self.kernel.flash_attn_func(*self.x, causal=True)
        self.out = torch.autograd.grad(out, self.x, self.grad)[0]

    def verify_with_gradients(self):
        x = (each.transpose(1, 2) for each in self.x)
        out = torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True).transpose(1, 2)
        return torch.autograd.grad(out, self.x, self.grad)[0]
