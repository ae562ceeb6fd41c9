from itertools import islice

import pytest
import torch

from rfwp.errors import InvalidInput
from rfwp.models.generate import sample, stream
from tests.contract import leaves
from tests.models.language_models import CORES, VOCABULARY, language_model, random_tokens
from tests.tolerances import FLOAT64


@pytest.mark.parametrize("core", CORES)
def test_steps_give_the_log_probabilities_of_the_whole_sequence(core):
    """Over a few hundred tokens that the model makes up itself: the recurrent form is the parallel form."""
    model = language_model(core).eval()
    prompt = random_tokens(2, 40)
    seen = []
    step = model.step
    model.step = lambda token, state: seen.append(step(token, state)) or seen[-1]
    made = model.generate(prompt, 201, seed=0)
    assert len(seen) == 200
    assert not any(logits.requires_grad for logits, _ in seen)
    with torch.no_grad():
        whole = model(torch.cat((prompt, made), dim=1))[0].log_softmax(-1)
    steps = torch.stack([logits for logits, _ in seen], dim=1).log_softmax(-1)
    torch.testing.assert_close(steps, whole[:, 40:-1], **FLOAT64)


@pytest.mark.parametrize("core", [name for name in CORES if name != "attention"])
def test_memory_is_constant(core):
    model = language_model(core).eval()
    states = []
    step = model.step
    model.step = lambda token, state: states.append(step(token, state)[1]) or step(token, state)
    model.generate(random_tokens(3, 5), 12, temperature=0)
    shapes = [[s.shape for s in leaves(state)] for state in states]
    assert shapes[0] == shapes[-1]


@pytest.mark.parametrize("adaptive", [True, False], ids=["adaptive", "plain"])
def test_greedy_takes_the_most_likely_token_each_time(adaptive):
    model = language_model("delta_rnn", adaptive).eval()
    tokens = random_tokens(3, 4)
    made = model.generate(tokens, 10, temperature=0)
    for t in range(10):
        with torch.no_grad():
            assert torch.equal(made[:, t], model(tokens)[0][:, -1].argmax(-1))
        tokens = torch.cat((tokens, made[:, t : t + 1]), dim=1)


def test_top_k_1_and_a_tiny_top_p_are_greedy():
    model, prompt = language_model(), random_tokens(3, 4)
    greedy = model.generate(prompt, 10, temperature=0)
    assert torch.equal(model.generate(prompt, 10, top_k=1), greedy)
    assert torch.equal(model.generate(prompt, 10, top_p=1e-9), greedy)


@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 1e-320])
def test_a_tiny_temperature_is_greedy(temperature):
    logits = language_model().eval()(random_tokens(3, 4))[0][:, -1].float()
    assert torch.equal(sample(logits, temperature, None, None, None), logits.argmax(-1))
    assert torch.equal(sample(logits, temperature, 5, 0.9, None), logits.argmax(-1))


def test_a_seed_decides_whatever_else_draws_random_numbers():
    model, prompt = language_model(), random_tokens(4, 3)
    one = model.generate(prompt, 20, seed=1)
    torch.rand(7)
    assert torch.equal(model.generate(prompt, 20, seed=1), one)
    assert not torch.equal(model.generate(prompt, 20, seed=2), one)
    torch.manual_seed(5)
    own = model.generate(prompt, 20)
    torch.manual_seed(5)
    assert torch.equal(model.generate(prompt, 20), own)


def test_a_stream_goes_on_from_a_state():
    model, tokens = language_model().eval(), random_tokens(2, 9)
    _, state = model(tokens[:, :6])
    assert torch.equal(model.generate(tokens[:, 6:], 8, temperature=0, state=state), model.generate(tokens, 8, temperature=0))


def frequencies(logits, *options, n=20_000):
    """How often each token is drawn."""
    generator = torch.Generator().manual_seed(0)
    tokens = sample(logits.expand(n, -1), *options, generator)
    return torch.bincount(tokens, minlength=len(logits)) / n


LOGITS = torch.tensor([0.5, 0.1, 0.25, 0.15]).log() + 3


@pytest.mark.parametrize(
    ("options", "p"),
    [
        ((1.0, None, None), [0.5, 0.1, 0.25, 0.15]),
        ((0.5, None, None), [0.25 / 0.345, 0.01 / 0.345, 0.0625 / 0.345, 0.0225 / 0.345]),
        ((1.0, 2, None), [2 / 3, 0, 1 / 3, 0]),
        ((1.0, 99, None), [0.5, 0.1, 0.25, 0.15]),
        ((1.0, None, 0.6), [2 / 3, 0, 1 / 3, 0]),
        ((1.0, None, 0.8), [5 / 9, 0, 2.5 / 9, 1.5 / 9]),
        ((1.0, None, 1.0), [0.5, 0.1, 0.25, 0.15]),
        ((1.0, 3, 0.8), [2 / 3, 0, 1 / 3, 0]),
    ],
)
def test_tokens_are_drawn_with_their_probabilities(options, p):
    # four standard deviations
    torch.testing.assert_close(frequencies(LOGITS, *options), torch.tensor(p), rtol=0, atol=4 * (0.25 / 20_000) ** 0.5)
    assert torch.equal(frequencies(LOGITS, *options) == 0, torch.tensor(p) == 0)


def test_a_row_that_came_to_its_end_says_nothing_else_and_all_rows_end_the_stream():
    model, prompt = language_model(), random_tokens(10, 3)
    made = model.generate(prompt, 1000, temperature=20, seed=0, eos=4)
    ended = made == 4
    assert made.shape[1] < 1000
    assert ended[:, -1].all()
    assert not ended[:, -2].all()
    assert torch.equal(ended.cummax(1).values, ended)
    free = model.generate(prompt, made.shape[1], temperature=20, seed=0)
    first = ended.int().argmax(1)
    assert torch.equal(made.gather(1, first[:, None]), free.gather(1, first[:, None]))


def test_a_stream_leaves_modes_and_gradients_as_they_were():
    model = language_model()
    for token in islice(stream(model, random_tokens(2, 3)), 3):
        assert torch.is_grad_enabled()
        assert all(m.training for m in model.modules())
        assert token.shape == (2,)


def test_dropout_is_off_in_training_mode_too():
    model, prompt = language_model(), random_tokens(8, 3)
    assert torch.equal(model.generate(prompt, 9, seed=0), model.generate(prompt, 9, seed=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature=-0.1; use 0 for the most likely token or a positive number"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": 0}, "top_k=0 leaves no token"),
        ({"top_p": 0.0}, "top_p=0.0; use a value above 0 and up to 1"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"seed": 2**64}, "seed=18446744073709551616 is out of range"),
        ({"eos": VOCABULARY}, "eos=23 is outside of the vocabulary 0 .. 22"),
        ({"prompt": torch.zeros(2, 0, dtype=torch.long)}, "the prompt is empty, its shape is (2, 0)"),
        ({"prompt": torch.zeros(3, dtype=torch.long)}, "prompt has shape (3,), expected 2 dimensions"),
        ({"length": 0}, "length=0; use at least 1"),
    ],
)
def test_bad_options_are_one_line_before_anything_is_made(options, message):
    model = language_model()
    with pytest.raises(InvalidInput) as caught:
        model.generate(**{"prompt": random_tokens(2, 3), "length": 5} | options)
    assert message in str(caught.value)
    if "length" not in options:
        with pytest.raises(InvalidInput):
            stream(model, **{"prompt": random_tokens(2, 3)} | options)


def test_a_model_that_cannot_read_what_it_writes_generates_nothing():
    model = language_model(adaptive=False)
    model.config = type(model.config)(VOCABULARY, 9)
    with pytest.raises(InvalidInput, match="reads 23 and writes 9 tokens"):
        model.generate(random_tokens(1, 3), 4)
