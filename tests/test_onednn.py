import copy
import math

import pytest
import torch
from torch import nn

from llm_arena.engines.onednn import OneDnnLinear, use_onednn


def models(tied=False, bias=True):
    """The same two-layer model twice: (plain, turned)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(300, 400, bias=bias), nn.Tanh(), nn.Linear(400, 300, bias=bias))
        if tied:
            plain = nn.Sequential(nn.Linear(300, 300, bias=bias), nn.Tanh(), nn.Linear(300, 300, bias=bias))
            plain[2].weight = plain[0].weight
    turned = copy.deepcopy(plain)
    assert use_onednn(turned) == 2
    return plain, turned


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 300), (7, 300), (3, 5, 300), (300,), (0, 300)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_output_is_the_float32_product(shape, bias, grad):
    plain, turned = models(bias=bias)
    with torch.set_grad_enabled(grad):
        result = turned(numbers(*shape))
    exact = copy.deepcopy(plain).double()(numbers(*shape).double())
    assert result.shape == exact.shape
    assert result.dtype == torch.float32
    assert torch.allclose(result.double(), exact, atol=1e-5, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", ["rows", "batch", "transposed"])
def test_gradients_are_those_of_float64(tied, bias, layout):
    plain, turned = models(tied, bias)
    exact = plain.double()
    given = {"rows": numbers(9, 300), "batch": numbers(2, 9, 300), "transposed": numbers(300, 9).t()}[layout]
    one, two = given.double().clone().requires_grad_(), given.clone().requires_grad_()
    (exact(one) ** 2).mean().backward()
    (turned(two) ** 2).mean().backward()
    pairs = [(one.grad, two.grad)]
    pairs += [(p.grad, q.grad) for p, q in zip(exact.parameters(), turned.parameters(), strict=True)]
    assert len(pairs) == 1 + (1 if tied else 2) + (2 if bias else 0)
    for wanted, got in pairs:
        assert (wanted - got.double()).norm() < 1e-5 * wanted.norm()


def test_frozen_parts_get_no_gradient():
    _, turned = models()
    turned[0].weight.requires_grad_(False)
    turned(numbers(4, 300)).sum().backward()
    assert turned[0].weight.grad is None
    assert turned[2].weight.grad is not None
    assert turned[0].bias.grad is not None


def test_other_types_take_the_usual_way():
    plain, turned = models()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert turned(numbers(4, 300)).dtype == plain(numbers(4, 300)).dtype == torch.bfloat16
    assert torch.equal(turned.bfloat16()(numbers(4, 300).bfloat16()), plain.bfloat16()(numbers(4, 300).bfloat16()))
    assert torch.equal(turned.double()(numbers(4, 300).double()), plain.double()(numbers(4, 300).double()))


def test_small_and_derived_layers_are_left_alone():
    class Own(nn.Linear):
        pass

    model = nn.ModuleList([nn.Linear(200, 200), Own(400, 400), nn.Linear(400, 400)])
    assert use_onednn(model) == 1
    assert [type(layer) for layer in model] == [nn.Linear, Own, OneDnnLinear]
    assert use_onednn(model) == 0


def test_what_is_saved_stays_the_same():
    plain, turned = models()
    assert {k: v.tolist() for k, v in turned.state_dict().items()} == {
        k: v.tolist() for k, v in plain.state_dict().items()
    }
    turned[0].weight.data.fill_(0.0)
    turned[0].bias.data.fill_(0.0)
    with torch.inference_mode():
        assert math.isclose(float((turned(numbers(1, 300)) - turned[2].bias).abs().max()), 0.0), "no stale copy"
