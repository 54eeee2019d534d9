"""The chunked head against plain log_softmax."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coevo_gym.agents.lm.causal_lm import token_logprobs, token_logprobs_and_entropy


def plain(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, temperature: Tensor
) -> Tensor:
    logits = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    scaled = logits / temperature.unsqueeze(1)
    return scaled.log_softmax(dim=1).gather(1, ids.unsqueeze(1)).squeeze(1)


def problem(
    n: int, width: int, vocabulary: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, width, generator=rng, dtype=dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=rng, dtype=dtype).requires_grad_()
    bias = torch.randn(vocabulary, generator=rng, dtype=dtype).requires_grad_()
    ids = torch.randint(vocabulary, (n,), generator=rng)
    temperature = 0.5 + torch.rand(n, generator=rng, dtype=dtype)
    return hidden, weight, bias, ids, temperature


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("with_bias", [True, False])
def test_value_and_gradient_equal_those_of_log_softmax(chunk: int, with_bias: bool) -> None:
    hidden, weight, bias, ids, temperature = problem(7, 5, 11)
    leaves = (hidden, weight, bias) if with_bias else (hidden, weight)
    b = bias if with_bias else None
    outer = torch.linspace(-1, 2, 7, dtype=torch.float64)
    got = token_logprobs(hidden, weight, b, ids, temperature, chunk=chunk)
    want = plain(hidden, weight, b, ids, temperature)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    got_grads = torch.autograd.grad((got * outer).sum(), leaves)
    want_grads = torch.autograd.grad((want * outer).sum(), leaves)
    for g, w in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-12)


def test_gradients_pass_torch_gradcheck() -> None:
    hidden, weight, bias, ids, temperature = problem(4, 3, 5)
    assert torch.autograd.gradcheck(
        lambda h, w, b: token_logprobs(h, w, b, ids, temperature, chunk=3), (hidden, weight, bias)
    )


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_entropies_and_their_gradients_equal_those_of_log_softmax(chunk: int) -> None:
    hidden, weight, bias, ids, temperature = problem(7, 5, 11)
    outer = torch.linspace(-1, 2, 7, dtype=torch.float64)
    logps, entropy = token_logprobs_and_entropy(hidden, weight, bias, ids, temperature, chunk=chunk)
    assert torch.equal(logps, token_logprobs(hidden, weight, bias, ids, temperature, chunk=chunk))
    every = ((hidden @ weight.T + bias) / temperature.unsqueeze(1)).log_softmax(dim=1)
    want = -(every.exp() * every).sum(dim=1)
    torch.testing.assert_close(entropy, want, rtol=1e-12, atol=1e-12)
    picked = every.gather(1, ids.unsqueeze(1)).squeeze(1)
    leaves = (hidden, weight, bias)
    got_grads = torch.autograd.grad((entropy * outer + logps * outer.flip(0)).sum(), leaves)
    want_grads = torch.autograd.grad((want * outer + picked * outer.flip(0)).sum(), leaves)
    for g, w in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-12)


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, weight, _, ids, temperature = problem(4, 3, 5)
    token_logprobs(hidden, weight.detach(), None, ids, temperature).sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_zero_tokens_give_empty_logprobs_and_zero_gradients() -> None:
    hidden, weight, bias, ids, temperature = problem(0, 3, 5)
    got = token_logprobs(hidden, weight, bias, ids, temperature)
    got.sum().backward()
    assert got.shape == (0,)
    assert weight.grad is not None
    assert not weight.grad.any()


def test_half_precision_is_summed_in_fp32() -> None:
    hidden, weight, bias, ids, temperature = problem(9, 16, 500, torch.bfloat16)
    got = token_logprobs(hidden, weight, bias, ids, temperature.float())
    assert got.dtype == torch.float32
    logits = hidden.float() @ weight.float().T + bias.float()
    want = (logits / temperature.float().unsqueeze(1)).log_softmax(dim=1)
    torch.testing.assert_close(got, want.gather(1, ids.unsqueeze(1)).squeeze(1))
    got.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_autocast_decides_the_precision_of_the_products() -> None:
    hidden, weight, _, ids, temperature = problem(9, 16, 500, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = token_logprobs(hidden, weight, None, ids, temperature, chunk=4)
    logits = hidden.to(torch.bfloat16).float() @ weight.T / temperature.unsqueeze(1)
    want = logits.log_softmax(dim=1).gather(1, ids.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def test_no_tensor_of_the_size_of_all_logits_is_allocated() -> None:
    n, vocabulary, chunk = 64, 5_000, 4
    hidden, weight, _, ids, temperature = problem(n, 8, vocabulary, torch.float32)
    n_elements: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        n_elements.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logps = token_logprobs(hidden, weight, None, ids, temperature, chunk=chunk)
    assert max(n_elements) == weight.numel() < n * vocabulary / 4

    sizes = Sizes()
    with sizes:
        token_logprobs(hidden, weight, None, ids, temperature, chunk=chunk).sum().backward()
        logps.sum().backward()
    assert sizes.largest == weight.numel()  # 8 rows of logits; a chunk has 4


class Sizes(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """Watches the size of every tensor that is made."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        output = func(*args, **(kwargs or {}))
        if isinstance(output, Tensor):
            self.largest = max(self.largest, output.numel())
        return output
