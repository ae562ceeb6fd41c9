import math

import pytest
import torch

from rfwp.errors import InvalidInput
from rfwp.models import perplexity
from rfwp.models.perplexity import full_context, sliding_window
from tests.models.language_models import CORES, language_model, random_tokens
from tests.tolerances import FLOAT32, FLOAT64


def log_p(model, window):
    """log p(next token) at each position of one window (T + 1,), computed alone and from a zero state."""
    model.eval()
    with torch.no_grad():
        logits = model(window[None, :-1])[0].log_softmax(-1)[0]
    model.train()
    return logits.gather(1, window[1:, None]).squeeze(1)


def one_window_at_a_time(model, tokens, window):
    """-log p of all N - 1 targets by the definition: the first window whole, then the last position of each."""
    parts = [log_p(model, tokens[: window + 1])]
    parts += [log_p(model, tokens[i : i + window + 1])[-1:] for i in range(1, len(tokens) - window)]
    return -torch.cat(parts)


@pytest.mark.parametrize(("nll", "expected"), [(2.0, math.e), (2 * 800.0, math.inf), (math.nan, math.nan)])
def test_perplexity_of_any_loss(nll, expected):
    found = perplexity.Perplexity(torch.tensor([nll], dtype=torch.float64), torch.tensor([2]))
    assert found.perplexity == pytest.approx(expected, nan_ok=True)


def test_a_model_is_in_the_mode_it_was_in():
    model = language_model()
    model.core.eval()
    sliding_window(model, random_tokens(9), 4)
    assert model.training
    assert not model.core.training


@pytest.mark.parametrize("core", CORES)
def test_sliding_window_is_one_window_after_another(core):
    model, tokens = language_model(core), random_tokens(30)
    expected = one_window_at_a_time(model, tokens, 8)
    assert len(expected) == 29
    result = sliding_window(model, tokens, window=8, batch=6)
    assert result.count == 29
    assert result.counts.tolist() == [1] * 7 + [22]
    torch.testing.assert_close(result.nll, expected.sum().item(), **FLOAT64)
    torch.testing.assert_close(result.perplexity, expected.mean().exp().item(), **FLOAT64)
    torch.testing.assert_close(result.by_position[:7], expected[:7], **FLOAT64)
    torch.testing.assert_close(result.by_position[7], expected[7:].mean(), **FLOAT64)


@pytest.mark.parametrize("adaptive", [True, False], ids=["adaptive", "plain"])
def test_sliding_window_in_float32(adaptive):
    model, tokens = language_model("delta_rnn", adaptive, torch.float32), random_tokens(40)
    expected = one_window_at_a_time(model, tokens, 8).double().mean().item()
    torch.testing.assert_close(sliding_window(model, tokens, window=8).mean, expected, **FLOAT32)


@pytest.mark.parametrize("adaptive", [True, False], ids=["adaptive", "plain"])
def test_tokens_may_be_short_integers(adaptive):
    model, tokens = language_model("delta_rnn", adaptive), random_tokens(20)
    assert sliding_window(model, tokens.int(), window=8).nll == sliding_window(model, tokens, window=8).nll
    assert full_context(model, tokens.int(), segment=8).nll == full_context(model, tokens, segment=8).nll


@pytest.mark.parametrize("batch", [1, 5, 21, 1000])
def test_how_many_windows_go_at_once_changes_nothing(batch):
    model, tokens = language_model(), random_tokens(30)
    whole, parts = sliding_window(model, tokens, window=8), sliding_window(model, tokens, window=8, batch=batch)
    torch.testing.assert_close(parts.sums, whole.sums, **FLOAT64)
    assert torch.equal(parts.counts, whole.counts)


@pytest.mark.parametrize("stride", [2, 5, 8])
@pytest.mark.parametrize("N", [9, 10, 11, 30, 33])
def test_every_target_counts_once_with_any_stride(N, stride):
    model, tokens = language_model(), random_tokens(N)
    result = sliding_window(model, tokens, window=8, stride=stride, batch=3)
    assert result.count == N - 1
    expected, counted = log_p(model, tokens[:9]).sum(), 8
    while counted < N - 1:
        end = min(counted + stride, N - 1)
        expected = expected + log_p(model, tokens[end - 8 : end + 1])[counted - end :].sum()
        counted = end
    torch.testing.assert_close(result.nll, -expected.item(), **FLOAT64)


def test_windows_side_by_side_give_the_loss_at_every_position():
    model, tokens = language_model(), random_tokens(33)
    result = sliding_window(model, tokens, window=8, stride=8)
    assert result.counts.tolist() == [4] * 8
    expected = -torch.stack([log_p(model, tokens[i : i + 9]) for i in range(0, 32, 8)]).mean(0)
    torch.testing.assert_close(result.by_position, expected, **FLOAT64)


@pytest.mark.parametrize("N", [2, 7, 9])
def test_tokens_that_fit_in_one_window(N):
    model, tokens = language_model(), random_tokens(N)
    result = sliding_window(model, tokens, window=8)
    assert result.count == N - 1
    torch.testing.assert_close(result.nll, -log_p(model, tokens).sum().item(), **FLOAT64)
    assert result.by_position.isnan().tolist() == [False] * (N - 1) + [True] * (9 - N)


@pytest.mark.parametrize("core", CORES)
def test_full_context_is_one_pass_over_all_tokens(core):
    model, tokens = language_model(core), random_tokens(30)
    result = full_context(model, tokens, segment=8)
    assert result.count == 29
    assert result.counts.tolist() == [4] * 5 + [3] * 3
    torch.testing.assert_close(result.nll, -log_p(model, tokens).sum().item(), **FLOAT64)


@pytest.mark.parametrize("streams", [2, 3, 4, 29])
def test_streams_start_from_zero_and_cover_every_target(streams):
    model, tokens = language_model(), random_tokens(30)
    result = full_context(model, tokens, segment=4, streams=streams)
    length = -(-29 // streams)
    expected = -sum(log_p(model, tokens[i : i + length + 1]).sum() for i in range(0, 29, length))
    assert result.count == 29
    torch.testing.assert_close(result.nll, expected.item(), **FLOAT64)


SHARED = {
    "windows": lambda model, tokens, **share: sliding_window(model, tokens, window=8, batch=4, **share),
    "strides": lambda model, tokens, **share: sliding_window(model, tokens, window=8, stride=3, batch=2, **share),
    "one window": lambda model, tokens, **share: sliding_window(model, tokens[:6], window=8, **share),
    "streams": lambda model, tokens, **share: full_context(model, tokens, segment=4, streams=4, **share),
    "one stream": lambda model, tokens, **share: full_context(model, tokens, segment=8, **share),
}


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("how", SHARED)
def test_processes_that_share_the_work_add_up_to_one_and_call_the_model_equally_often(how, size, monkeypatch):
    """Every process at least once, and as often as the others: a model in parts is only there when all call it."""
    model, tokens = language_model(), random_tokens(42)
    whole = SHARED[how](model, tokens)
    calls, hidden = [0] * size, model.hidden
    parts = []
    for rank in range(size):

        def count(*arguments, rank=rank):
            calls[rank] += 1
            return hidden(*arguments)

        monkeypatch.setattr(model, "hidden", count)
        parts.append(SHARED[how](model, tokens, share=(rank, size)))
    assert min(calls) == max(calls) > 0
    torch.testing.assert_close(sum(part.sums for part in parts), whole.sums, **FLOAT64)
    assert torch.equal(sum(part.counts for part in parts), whole.counts)


def test_windows_that_are_shared_are_computed_in_the_same_batches(monkeypatch):
    """So that the numbers are those of one process in every precision."""
    model, tokens, shapes = language_model(), random_tokens(42), []
    nll = model.nll
    monkeypatch.setattr(model, "nll", lambda hidden, targets: shapes.append(tuple(targets.shape)) or nll(hidden, targets))
    sliding_window(model, tokens, window=8, batch=8)
    whole, shapes[:] = sorted(shapes), []
    for rank in range(2):
        sliding_window(model, tokens, window=8, batch=8, share=(rank, 2))
    # six batches, three for each: nobody has to fill up
    assert sorted(shapes) == whole


def test_only_what_counts_goes_through_the_head(monkeypatch):
    model, rows = language_model(), []
    nll = model.nll
    monkeypatch.setattr(model, "nll", lambda hidden, targets: rows.append(targets.numel()) or nll(hidden, targets))
    sliding_window(model, random_tokens(30), window=8, batch=10)
    assert rows == [8, 10, 10, 1]


@pytest.mark.parametrize("run", [sliding_window, full_context])
def test_progress_ends_at_the_total_and_the_model_stays_as_it_was(run):
    model, seen = language_model(), []
    run(model, random_tokens(700), progress=lambda *x: seen.append(x))
    assert len(seen) > 1
    assert sorted(seen) == seen
    assert seen[-1] == (699, 699)
    assert all(m.training for m in model.modules())
    model.eval()
    run(model, random_tokens(9))
    assert not any(m.training for m in model.modules())


def test_perplexity_beyond_all_numbers_is_infinite():
    result = perplexity.Perplexity(torch.tensor([1e6], dtype=torch.float64), torch.tensor([1]))
    assert result.perplexity == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: sliding_window(m, x, window=0), "window=0; use at least 1"),
        (lambda m, x: sliding_window(m, x, batch=0), "batch=0; use at least 1"),
        (lambda m, x: sliding_window(m, x, window=8, stride=9), "stride=9 leaves out tokens between windows of 8"),
        (lambda m, x: sliding_window(m, x[:1]), "one token predicts nothing"),
        (lambda m, x: sliding_window(m, x[None]), "tokens has shape (1, 30), expected 1 dimensions"),
        (lambda m, x: full_context(m, x, segment=-1), "segment=-1; use at least 1"),
        (lambda m, x: full_context(m, x, streams=30), "streams=30 are more than the 29 targets"),
        (lambda m, x: full_context(m, x + 23), "outside of the vocabulary"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InvalidInput) as caught:
        call(language_model(), random_tokens(30))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
