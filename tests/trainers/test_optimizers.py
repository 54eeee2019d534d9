"""Optimisers whose moments take less memory on the device."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from coevo_gym.core.errors import ConfigError  # noqa: E402
from coevo_gym.trainers.settings import UpdateConfig  # noqa: E402
from coevo_gym.trainers.update.optimizer import (  # noqa: E402
    GuardedOptimizer,
    OffloadedAdamW,
    make_adamw,
)

SHAPES = ((64, 128), (64,), (3, 7))
RATES = (1e-2, 1e-3, 1e-3)


def weights_of(seed: int = 0) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def parts(weights: list[torch.nn.Parameter]) -> list[tuple[list[torch.nn.Parameter], float]]:
    return [([weight], rate) for weight, rate in zip(weights, RATES, strict=True)]


def set_gradients(weights: list[torch.nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator)


def take_steps(optimizer: Any, weights: list[torch.nn.Parameter], seeds: range) -> None:
    for seed in seeds:
        set_gradients(weights, seed)
        optimizer.step(0.0) if isinstance(optimizer, GuardedOptimizer) else optimizer.step()


def guarded(name: str, weights: list[torch.nn.Parameter]) -> GuardedOptimizer:
    adamw: Any
    if name == "adamw_offload":  # on a GPU; here, the weights are in main memory, too
        groups = [{"params": part, "lr": rate} for part, rate in parts(weights)]
        adamw = OffloadedAdamW(groups, weight_decay=0.1)
    else:
        adamw = make_adamw(name, *parts(weights), weight_decay=0.1)
    return GuardedOptimizer(adamw, max_grad_norm=1.0, warmup_steps=4)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors(one)
    elif isinstance(value, torch.Tensor):
        yield value


@pytest.fixture(params=["adamw", "adamw_8bit", "adamw_offload"])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "adamw_8bit":
        pytest.importorskip("torchao")
    return str(request.param)


def test_a_restored_optimizer_takes_the_same_steps(name: str) -> None:
    weights = weights_of()
    optimizer = guarded(name, weights)
    take_steps(optimizer, weights, range(3))
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), [w.detach().clone() for w in weights]], file)
    take_steps(optimizer, weights, range(3, 6))

    others = weights_of(seed=1)
    restored = guarded(name, others)
    file.seek(0)
    state, saved = torch.load(file, weights_only=True)
    for weight, value in zip(others, saved, strict=True):
        weight.data.copy_(value)
    restored.load_state_dict(state)
    take_steps(restored, others, range(3, 6))
    assert all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))
    assert restored.lr == optimizer.lr


def test_later_steps_leave_a_saved_state_unchanged(name: str) -> None:
    weights = weights_of()
    optimizer = guarded(name, weights)
    take_steps(optimizer, weights, range(2))
    state = optimizer.state_dict()
    assert {type(tensor) for tensor in tensors(state)} == {torch.Tensor}
    before = [tensor.clone() for tensor in tensors(state)]
    take_steps(optimizer, weights, range(2, 4))
    assert all(map(torch.equal, before, tensors(state)))


def test_a_nonfinite_step_changes_neither_weights_nor_moments(name: str) -> None:
    weights = weights_of()
    optimizer = guarded(name, weights)
    take_steps(optimizer, weights, range(2))
    before = [*tensors(optimizer.state_dict()), *(w.detach().clone() for w in weights)]
    set_gradients(weights, 7)
    weights[0].grad[0, 0] = float("nan")
    assert optimizer.step(0.0) is None
    assert all(map(torch.equal, before, [*tensors(optimizer.state_dict()), *weights]))
    take_steps(optimizer, weights, range(2, 3))
    assert all(bool(weight.isfinite().all()) for weight in weights)


def test_offloaded_adamw_takes_the_steps_of_adamw() -> None:
    weights, others = weights_of(), weights_of()
    adamw, offloaded = guarded("adamw", weights), guarded("adamw_offload", others)
    for optimizer, these in ((adamw, weights), (offloaded, others)):
        take_steps(optimizer, these, range(3))
        set_gradients(these, 3)
        these[1].grad = None
        optimizer.step(0.0)
    assert all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))
    assert len(offloaded._inner.param_groups) == len(SHAPES)
    mine, theirs = adamw.state_dict(), offloaded.state_dict()
    assert all(map(torch.equal, tensors(mine), tensors(theirs)))


def test_eight_bit_moments_take_two_bytes_per_weight() -> None:
    pytest.importorskip("torchao")
    weight = torch.nn.Parameter(torch.randn(512, 512))
    optimizer = make_adamw("adamw_8bit", ([weight], 1e-3))
    take_steps(optimizer, [weight], range(1))
    n_bytes = sum(tensor.nbytes for tensor in tensors(optimizer.state_dict()["state"]))
    assert n_bytes == pytest.approx(2 * weight.numel(), rel=0.04)


def test_the_first_step_of_eight_bit_adamw_is_that_of_adamw() -> None:
    """It is computed before the moments are rounded."""
    pytest.importorskip("torchao")
    weights, others = weights_of(), weights_of()
    take_steps(make_adamw("adamw", *parts(weights)), weights, range(1))
    take_steps(make_adamw("adamw_8bit", *parts(others)), others, range(1))
    for one, other in zip(weights, others, strict=True):
        torch.testing.assert_close(one, other)


def test_offloading_from_a_cpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="on a CPU, where they are in main memory anyway"):
        make_adamw("adamw_offload", *parts(weights_of()))


def test_a_missing_torchao_raises_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "coevo_gym.trainers.update.adamw_8bit", raising=False)
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(ImportError, match=r"adamw_8bit needs torchao\. Run `pip install .*torchao"):
        make_adamw("adamw_8bit", *parts(weights_of()))


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match="adamw_8bit"):
        UpdateConfig.model_validate({"optimizer": "sgd"})
