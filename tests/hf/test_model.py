"""Our models inside transformers: the same numbers, offline."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from rfwp.errors import InvalidInput
from rfwp.hf import RecurrentCache, RFWPConfig, RFWPForCausalLM
from rfwp.hf.export import as_transformers
from tests.contract import leaves
from tests.lm.saved import WORDS
from tests.models.language_models import CORES, VOCABULARY, language_model, random_tokens
from tests.tolerances import FLOAT32

EOS = WORDS.eos


def both(core="rdn", **options):
    """One of our models, and the same inside transformers."""
    model = language_model(core, dtype=torch.float32, **options).eval()
    return model, as_transformers(model, WORDS)[0]


def padded(rows):
    """Rows of different lengths, padded on the left."""
    T = max(map(len, rows))
    ids = torch.stack([torch.cat((row.new_full((T - len(row),), EOS), row)) for row in rows])
    mask = torch.stack([torch.arange(T) >= T - len(row) for row in rows]).long()
    return ids, mask


def generated(model, ids, **options):
    """Tokens that were added and the logits that they come from."""
    said = model.generate(ids, output_logits=True, return_dict_in_generate=True, **options)
    return said.sequences[:, ids.shape[1] :], torch.stack(said.logits, dim=1), said.past_key_values


# --- generate ---


@pytest.mark.parametrize("core", ["rdn", "delta_rnn", "lstm", "attention_window"])
def test_generate_gives_our_greedy_tokens_and_their_log_probabilities(core):
    model, wrapped = both(core)
    ids = random_tokens(3, 7)
    tokens, logits, cache = generated(wrapped, ids, max_new_tokens=20, do_sample=False)
    assert torch.equal(tokens, model.generate(ids, 20, temperature=0))
    with torch.no_grad():
        whole = model(torch.cat((ids, tokens), dim=1))[0]
    torch.testing.assert_close(logits.log_softmax(-1), whole[:, 6:-1].log_softmax(-1), **FLOAT32)
    assert isinstance(cache, RecurrentCache)
    assert cache.get_seq_length() == 7 + 20 - 1
    assert cache.batch_size == 3


def test_the_prompt_is_read_once_and_then_one_token_a_step():
    model, wrapped = both()
    lengths, sizes = [], set()
    hidden = model.hidden

    def spied(tokens, state, reset):
        out = hidden(tokens, state, reset)
        lengths.append(tokens.shape[1])
        sizes.add(sum(s.numel() for s in leaves(out[1])))
        return out

    model.hidden = spied
    wrapped.generate(random_tokens(2, 9), max_new_tokens=5, do_sample=True)
    assert lengths == [9, 1, 1, 1, 1]
    assert len(sizes) == 1


def test_without_a_cache_the_tokens_are_the_same():
    _, wrapped = both("delta_rnn")
    ids = random_tokens(2, 5)
    options = {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(wrapped.generate(ids, **options), wrapped.generate(ids, use_cache=False, **options))


@pytest.mark.parametrize("core", ["rdn", "delta_rnn", "lstm", "attention"])
def test_padding_on_the_left_changes_nothing(core):
    _, wrapped = both(core)
    rows = [random_tokens(1, n)[0] for n in (2, 7, 4)]
    ids, mask = padded(rows)
    tokens, logits, _ = generated(wrapped, ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
    for row, made, said in zip(rows, tokens, logits, strict=True):
        alone, scores, _ = generated(wrapped, row[None], max_new_tokens=8, do_sample=False)
        assert torch.equal(made, alone[0])
        torch.testing.assert_close(said, scores[0], **FLOAT32)


def test_an_empty_prompt_among_others_is_the_start_of_a_line():
    _, wrapped = both()
    ids, mask = padded([random_tokens(1, 0)[0], random_tokens(1, 4)[0]])
    tokens, logits, _ = generated(wrapped, ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
    alone, scores, _ = generated(wrapped, torch.tensor([[EOS]]), max_new_tokens=8, do_sample=False)
    assert torch.equal(tokens[0], alone[0])
    torch.testing.assert_close(logits[0], scores[0], **FLOAT32)
    assert not mask[0].any()


def test_a_padded_prompt_may_be_read_in_pieces():
    _, wrapped = both()
    rows = [random_tokens(1, n)[0] for n in (3, 6)]
    ids, mask = padded(rows)
    alone = torch.cat([wrapped(row[None]).logits[:, -1] for row in rows])
    # the first row begins at token 3, so that one of the pieces begins with it
    for cut in range(1, 6):
        first = wrapped(ids[:, :cut], attention_mask=mask[:, :cut], use_cache=True)
        second = wrapped(ids[:, cut:], attention_mask=mask, past_key_values=first.past_key_values)
        torch.testing.assert_close(second.logits[:, -1], alone, **FLOAT32)


def test_sampling_goes_on_differently_in_every_row_and_the_same_with_the_same_seed():
    _, wrapped = both()
    ids = random_tokens(1, 4)
    options = {"max_new_tokens": 12, "do_sample": True, "temperature": 3.0, "num_return_sequences": 5}
    torch.manual_seed(0)
    one = wrapped.generate(ids, **options)
    torch.manual_seed(0)
    assert torch.equal(wrapped.generate(ids, **options), one)
    assert len({tuple(row.tolist()) for row in one}) == 5


@pytest.mark.parametrize("core", ["rdn", "lstm"])
def test_beam_search_takes_each_state_along_with_its_beam(core):
    """The score of every beam is the sum of the log-probabilities that the whole text has."""
    model, wrapped = both(core, init="default")
    ids = random_tokens(2, 3)
    # close calls at every step, so that beams change places
    wrapped.model.head.embedding.weight.data.mul_(0.3)
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 8, "do_sample": False, "length_penalty": 0.0}
    said = wrapped.generate(ids, output_scores=True, return_dict_in_generate=True, **options)
    with torch.no_grad():
        log_p = model(said.sequences)[0].log_softmax(-1)
    spoken = log_p[:, 2:-1].gather(-1, said.sequences[:, 3:, None]).squeeze(-1).sum(1)
    torch.testing.assert_close(said.sequences_scores, spoken, **FLOAT32)
    assert (said.beam_indices[:, 1:] != said.beam_indices[:, :1]).any()


def test_a_text_goes_on_from_a_cache_that_stays_as_it_was():
    _, wrapped = both()
    ids = random_tokens(2, 8)
    cache = wrapped(ids[:, :5]).past_key_values
    before = copy.deepcopy(cache)
    one = wrapped.generate(ids, past_key_values=cache, max_new_tokens=6, do_sample=False)
    assert torch.equal(one, wrapped.generate(ids, max_new_tokens=6, do_sample=False))
    assert cache.get_seq_length() == before.get_seq_length() == 5
    assert all(torch.equal(a, b) for a, b in zip(leaves(cache.state), leaves(before.state), strict=True))


@pytest.mark.parametrize("prompt", [[3, EOS, 4, 5], [EOS, 3, 4], [EOS, EOS], [3, 4, EOS]])
def test_line_breaks_in_a_prompt_without_a_mask_are_no_padding(prompt):
    model, wrapped = both()
    ids = torch.tensor([prompt])
    tokens, logits, cache = generated(wrapped, ids, max_new_tokens=4, do_sample=False)
    with torch.no_grad():
        whole = model(torch.cat((ids, tokens), dim=1))[0]
    torch.testing.assert_close(logits, whole[:, len(prompt) - 1 : -1], **FLOAT32)
    assert torch.equal(tokens, wrapped.generate(input_ids=ids, max_new_tokens=4, do_sample=False)[:, len(prompt) :])
    longer = torch.cat((ids, tokens), dim=1)
    one = wrapped.generate(longer, past_key_values=cache, max_new_tokens=3, do_sample=False)
    assert torch.equal(one[:, longer.shape[1] :], model.generate(longer, 3, temperature=0))


# --- Loss ---


@pytest.mark.parametrize("adaptive", [True, False])
def test_labels_are_shifted_and_give_our_loss_and_its_gradients(adaptive):
    _, wrapped = both(adaptive=adaptive)
    model = copy.deepcopy(wrapped.model)
    ids, labels = random_tokens(3, 9), random_tokens(3, 9)
    labels[0, :4] = -100
    wrapped(ids, labels=labels).loss.backward()
    loss, _ = model.loss(ids[:, :-1].contiguous(), labels[:, 1:], ignore=-100)
    loss.backward()
    for ours, theirs in zip(model.parameters(), wrapped.model.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, ours.grad, **FLOAT32)
    torch.testing.assert_close(wrapped(ids, labels=labels).loss, loss, **FLOAT32)
    counted = (labels[:, 1:] != -100).sum()
    part = wrapped(ids, labels=labels, num_items_in_batch=2 * counted).loss
    torch.testing.assert_close(2 * part, loss, **FLOAT32)


def test_with_labels_there_are_logits_in_eval_mode_only():
    _, wrapped = both()
    ids = random_tokens(2, 6)
    assert wrapped(ids, labels=ids).logits.shape == (2, 6, VOCABULARY)
    assert wrapped.train()(ids, labels=ids).logits is None
    assert wrapped.eval()(ids, logits_to_keep=2).logits.shape == (2, 2, VOCABULARY)
    assert len(wrapped(ids, labels=ids, return_dict=False)) == 2


def test_padding_on_the_right_is_for_training_only():
    _, wrapped = both()
    ids = random_tokens(1, 6)
    longer, mask = torch.cat((ids, ids[:, :2]), dim=1), torch.tensor([[1] * 6 + [0] * 2])
    labels = longer.masked_fill(mask == 0, -100)
    loss = wrapped(longer, attention_mask=mask, labels=labels).loss
    torch.testing.assert_close(loss, wrapped(ids, labels=ids).loss, **FLOAT32)
    with pytest.raises(InvalidInput, match="padding on the right, which would be remembered; pad on the left"):
        wrapped.generate(longer, attention_mask=mask, max_new_tokens=2)
    with pytest.raises(InvalidInput, match="padding inside a row"):
        wrapped(ids, attention_mask=torch.tensor([[1, 1, 0, 0, 1, 1]]), use_cache=False)


# --- Folders ---


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("adaptive", [True, False], ids=["adaptive", "plain"])
def test_a_saved_model_comes_back_with_the_same_logits(core, adaptive, tmp_path):
    model, wrapped = both(core, adaptive=adaptive)
    wrapped.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, RFWPForCausalLM)
    assert loaded.model.config == model.config
    assert loaded.num_parameters() == sum(p.numel() for p in model.parameters())
    ids = random_tokens(2, 5)
    assert torch.equal(loaded(ids).logits, model(ids)[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "generation_config.json", "model.safetensors"]


def test_a_new_model_has_the_weights_of_ours_and_not_those_that_transformers_would_draw():
    config = language_model().config
    torch.manual_seed(4)
    made = AutoModelForCausalLM.from_config(RFWPConfig(config))
    torch.manual_seed(4)
    for ours, theirs in zip(type(made.model)(config).parameters(), made.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_tied_matrix_is_both_ends_after_loading_too(tmp_path):
    _, wrapped = both()
    wrapped.save_pretrained(tmp_path)
    loaded = RFWPForCausalLM.from_pretrained(tmp_path)
    ids = torch.full((1, 3), 4)
    before = loaded(ids).logits
    loaded.get_input_embeddings().weight.data[9] += 1
    changed = loaded(ids).logits != before
    # word 9 is only predicted here, never read
    assert changed[..., 9].all()
    assert not changed[..., :5].any()


def test_a_model_can_be_half_as_wide(tmp_path):
    _, wrapped = both()
    wrapped.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert loaded(random_tokens(1, 4)).logits.isfinite().all()
    assert loaded.dtype == torch.bfloat16


# --- Bad input ---


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": None}, "reads input_ids and nothing else"),
        ({"inputs_embeds": torch.zeros(1, 3, 8)}, "does not know inputs_embeds; leave it away"),
        ({"output_hidden_states": True}, "does not know output_hidden_states"),
        ({"past_key_values": DynamicCache()}, "past_key_values is a DynamicCache, expected the RecurrentCache"),
        ({"attention_mask": torch.ones(1, 2)}, "attention_mask has shape (1, 2), expected (B, T or more) for B=1 and T=3"),
        ({"input_ids": torch.tensor([[0, VOCABULARY]])}, "tokens contain 23, outside of the vocabulary"),
        ({"labels": torch.zeros(1, 2, dtype=torch.long)}, "T=2 as in labels"),
    ],
)
def test_what_the_model_cannot_do_is_one_line(inputs, message):
    _, wrapped = both()
    with pytest.raises(InvalidInput) as caught:
        wrapped(**{"input_ids": random_tokens(1, 3)} | inputs)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_words_cannot_be_added_and_a_state_cannot_go_back():
    _, wrapped = both()
    with pytest.raises(InvalidInput, match="has the words it was trained with"):
        wrapped.resize_token_embeddings(30)
    with pytest.raises(InvalidInput, match="has the words it was trained with"):
        wrapped.set_input_embeddings(None)
    with pytest.raises(InvalidInput, match="cannot go back to an earlier token"):
        wrapped(random_tokens(1, 3)).past_key_values.crop(-1)


def test_a_cache_can_be_cut_repeated_and_emptied():
    model, wrapped = both()
    ids = random_tokens(3, 5)
    cache = wrapped(ids).past_key_values
    cache.batch_select_indices(torch.tensor([2, 0]))
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 4
    expected = model(ids[[2, 2, 0, 0]])[1]
    for a, b in zip(leaves(cache.state), leaves(expected), strict=True):
        torch.testing.assert_close(a, b, **FLOAT32)
    cache.reset()
    assert (cache.get_seq_length(), cache.batch_size, cache.is_initialized) == (0, 0, False)
    assert "length=0" in repr(cache)


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (None, "expected an object with a 'kind'"),
        ({"kind": "lstm"}, "has kind 'lstm', expected 'sequence'"),
        ({"kind": "sequence", "inputs": 3, "outputs": 4}, "reads 3 and writes 4 tokens; a language model reads what it writes"),
    ],
)
def test_a_config_that_is_no_language_model_is_one_line(sequence, message):
    with pytest.raises(InvalidInput, match=message):
        RFWPForCausalLM(RFWPConfig(sequence))


def test_names_that_transformers_asks_for():
    config = RFWPConfig(language_model().config)
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (VOCABULARY, 8, 2)


def test_the_trainer_can_tell_the_cache_from_predictions():
    """`Trainer.evaluate` adds a list to these names, and gathers what has another one."""
    _, wrapped = both()
    others = ["loss"]
    ignored = wrapped.config.keys_to_ignore_at_inference + others
    ids = random_tokens(2, 5)
    output = wrapped(ids, labels=ids, use_cache=True)
    assert [name for name in output if name not in ignored] == ["logits"]
