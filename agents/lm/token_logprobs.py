"""Log-probabilities of tokens, computed in chunks to save memory.

Logits of n tokens are n x vocabulary numbers: 5 GB for 8 thousand tokens of a vocabulary of
150 thousand. Here, logits exist only for one chunk of tokens at a time and are recomputed in the
backward pass, so that the memory kept between the passes does not grow with the vocabulary.
Import this module lazily: it requires PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_LOGITS = 2**26
"""Maximum number of logits in memory at once."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    temperature: Tensor,
    *,
    chunk: int | None = None,
) -> Tensor:
    """Compute log-probabilities of ids under softmax((hidden W^T + b) / temperature).

    The result is in fp32 or better. Products are computed in the dtype of ``hidden``, or in
    autocast's dtype under autocast.

    Args:
        hidden: (N, H) last hidden states.
        weight: (V, H) weight of the LM head.
        bias: (V,) bias of the LM head, or None.
        ids: (N,) token that follows each hidden state.
        temperature: (N,) divisor of the logits; above 0.
        chunk: tokens per chunk; default: as many as make :data:`CHUNK_LOGITS` logits.

    Returns:
        (N,) log-probabilities, with gradients to ``hidden``, ``weight`` and ``bias``.
    """
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        hidden = hidden.to(torch.get_autocast_dtype(kind))
    size = chunk or max(1, CHUNK_LOGITS // weight.shape[0])
    logps: Tensor = _ChunkedHead.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, ids, temperature, size
    )
    return logps


class _ChunkedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        temperature: Tensor,
        size: int,
    ) -> Tensor:
        head = weight.to(hidden.dtype)
        logps = []
        normalisers = []
        for part in _chunks(len(hidden), size):
            scores = _scores(hidden[part], head, bias, temperature[part])  # (n, V)
            normalisers.append(scores.logsumexp(dim=1))
            picked = scores.gather(1, ids[part].unsqueeze(1)).squeeze(1)
            logps.append(picked - normalisers[-1])
        ctx.save_for_backward(hidden, weight, bias, ids, temperature, torch.cat(normalisers))
        ctx.size = size
        return torch.cat(logps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, ids, temperature, normaliser = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        head = weight.to(hidden.dtype)
        hidden_grad = torch.empty_like(hidden) if wants_hidden else None
        weight_grad = torch.zeros_like(weight) if wants_weight else None
        bias_grad = torch.zeros_like(bias) if wants_bias else None
        for part in _chunks(len(hidden), ctx.size):
            # d logp / d score is 1 at the token, minus the softmax everywhere.
            scores = _scores(hidden[part], head, bias, temperature[part])
            share = scores.sub_(normaliser[part].unsqueeze(1)).exp_().neg_()
            share.scatter_add_(1, ids[part].unsqueeze(1), torch.ones_like(share[:, :1]))
            share = share.mul_((grad[part] / temperature[part]).unsqueeze(1)).to(hidden.dtype)
            if hidden_grad is not None:
                hidden_grad[part] = share @ head
            if weight_grad is not None:
                weight_grad += share.T @ hidden[part]
            if bias_grad is not None:
                bias_grad += share.sum(dim=0)
        return hidden_grad, weight_grad, bias_grad, None, None, None


def _scores(hidden: Tensor, head: Tensor, bias: Tensor | None, temperature: Tensor) -> Tensor:
    """Return (n, V) logits over temperature, in fp32 or better, as a new tensor."""
    logits = hidden @ head.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if bias is not None:
        logits += bias
    return logits.div_(temperature.unsqueeze(1))


def _chunks(n: int, size: int) -> Iterator[slice]:
    # One empty chunk for n = 0 keeps every shape and dtype right.
    return (slice(start, start + size) for start in range(0, max(n, 1), size))
