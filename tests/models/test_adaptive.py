import pytest
import torch

from rfwp.errors import InvalidInput
from rfwp.models.adaptive import TiedAdaptive
from tests.tolerances import FLOAT64

VOCABULARY, WIDTH = 23, 6


def head_and_hidden(cutoffs=(5, 9, 20), n=40):
    torch.manual_seed(0)
    head = TiedAdaptive(VOCABULARY, WIDTH, cutoffs).double()
    torch.nn.init.normal_(head.bias)
    return head, torch.randn(n, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("cutoffs", [(1,), (22,), (5, 9, 20), tuple(range(1, VOCABULARY))])
def test_log_prob_sums_to_one(cutoffs):
    head, hidden = head_and_hidden(cutoffs)
    log_prob = head.log_prob(hidden.view(2, 20, WIDTH))
    assert log_prob.shape == (2, 20, VOCABULARY)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(2, 20, dtype=torch.float64), **FLOAT64)


def test_log_prob_is_the_product_of_cluster_and_word():
    head, hidden = head_and_hidden()
    E, b = head.embedding.weight, head.bias
    logits = hidden @ E.T + b
    clusters = hidden @ head.cluster.weight.T + head.cluster.bias
    first = torch.cat((logits[:, :5], clusters), dim=1).softmax(-1)
    p = [first[:, :5]]
    for i, (low, high) in enumerate([(5, 9), (9, 20), (20, 23)]):
        p.append(first[:, 5 + i, None] * logits[:, low:high].softmax(-1))
    torch.testing.assert_close(head.log_prob(hidden).exp(), torch.cat(p, dim=1), **FLOAT64)


@pytest.mark.parametrize("low_high", [(0, 23), (0, 5), (9, 20), (20, 23), (5, 20)])
def test_loss_is_the_gathered_log_prob_with_its_gradients(low_high):
    head, hidden = head_and_hidden()
    hidden.requires_grad_()
    targets = torch.randint(*low_high, (40,))
    expected = -head.log_prob(hidden).gather(1, targets[:, None]).mean()
    loss = head.loss(hidden, targets)
    torch.testing.assert_close(loss, expected, **FLOAT64)
    leaves = [hidden, *head.parameters()]
    options = {"allow_unused": True, "materialize_grads": True}
    ours, theirs = torch.autograd.grad(loss, leaves, **options), torch.autograd.grad(expected, leaves, **options)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **FLOAT64)


def test_loss_of_no_targets_is_zero():
    head, hidden = head_and_hidden(n=0)
    assert head.loss(hidden, torch.zeros(0, dtype=torch.long)) == 0


def test_embedding_and_output_weights_are_one_parameter():
    head, hidden = head_and_hidden()
    assert sum(p.numel() for p in head.parameters()) == VOCABULARY * WIDTH + VOCABULARY + 3 * WIDTH + 3
    head.loss(hidden, torch.full((40,), 7)).backward()
    assert head.embedding.weight.grad[7].abs().max() > 0


@pytest.mark.parametrize("cutoffs", [(), (0,), (23,), (5, 5), (9, 5), (5, 40)])
def test_cutoffs_that_do_not_rise_inside_the_vocabulary_are_refused(cutoffs):
    with pytest.raises(InvalidInput, match="must rise between 0 and the vocabulary of 23"):
        TiedAdaptive(VOCABULARY, WIDTH, cutoffs)


@pytest.mark.parametrize("target", [23, 24, 500])
def test_targets_outside_of_the_vocabulary_are_refused(target):
    head, hidden, targets = TiedAdaptive(VOCABULARY, WIDTH, (5, 9)), torch.zeros(3, WIDTH), torch.tensor([1, target, -1])
    for loss in (head.loss, head.nll):
        with pytest.raises(InvalidInput, match=f"targets contain {target}, outside of the vocabulary 0 .. 22"):
            loss(hidden, targets)
