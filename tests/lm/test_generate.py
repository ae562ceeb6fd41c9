import dataclasses
import io
import os
import subprocess
import sys

import pytest
import torch

import rfwp.lm.generate
from rfwp.errors import InvalidInput
from rfwp.lm.generate import beyond_training, check_options, prompt_words, tell, tell_many, unknown_words, write_lines
from rfwp.lm.generate_options import GenerateOptions
from rfwp.lm.saved import load_language_model
from rfwp.lm.spacing import Spacing
from tests.contract import leaves
from tests.lm.saved import WORDS, saved_model, saved_run
from tests.models.language_models import language_model, random_tokens
from tests.test_cli import run
from tests.tolerances import FLOAT32

PROMPT = "word0 word1 , word2"


@pytest.mark.parametrize("core", ["delta_rnn", "rdn", "linear_transformer", "lstm"])
def test_2000_steps_give_the_log_probabilities_of_the_whole_sequence_in_a_state_that_does_not_grow(core):
    model = language_model(core, dtype=torch.float32).eval()
    tokens, steps, state = random_tokens(1, 2000), [], None
    sizes = set()
    with torch.no_grad():
        whole = model(tokens)[0].log_softmax(-1)
        for t in range(2000):
            logits, state = model.step(tokens[:, t], state)
            steps.append(logits.log_softmax(-1))
            sizes.add(sum(s.numel() for s in leaves(state)))
    torch.testing.assert_close(torch.stack(steps, dim=1), whole, **FLOAT32)
    assert len(sizes) == 1


# --- Text ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b", ["a", "b"]),
        ("  a   b\n", ["a", "b"]),
        ("a\nb c\n\n", ["a", "<eos>", "b", "c", "<eos>"]),
        ("", ["<eos>"]),
        ("\n", ["<eos>"]),
    ],
)
def test_a_line_break_inside_a_prompt_is_eos_and_an_empty_prompt_starts_a_line(text, words):
    assert prompt_words(text) == words


def test_words_that_the_model_does_not_know_are_named_once():
    assert unknown_words(["word0", "x", "y", "x"], WORDS) == "not in the vocabulary, read as <unk>: x, y"
    assert unknown_words(list("abcdefg"), WORDS).endswith("a, b, c, d, e and 2 more")
    assert unknown_words(["word0"], WORDS) == ""


@pytest.mark.parametrize(("positions", "tokens", "said"), [("descending", 7, True), ("descending", 6, False), ("none", 7, False)])
def test_text_beyond_what_a_model_was_trained_on_is_said(positions, tokens, said):
    note = beyond_training(language_model(positions=positions), ["word0", "word1"], tokens)
    assert note.startswith("this model was trained on 8 words at a time") == said
    assert bool(note) == said


def test_words_stay_as_they_are_and_eos_breaks_the_line():
    text = "a well @-@ known ( one ) , <eos> b"
    assert "".join(map(Spacing(), text.split())) == "a well @-@ known ( one ) ,\nb"
    assert "".join(map(Spacing(breaks=False), text.split())) == text


def test_detokenised_text_has_its_spaces_as_before():
    text = 'the " well @-@ known " 1 @,@ 000 ( one ) , it \'s . <eos> " b " , c'
    assert "".join(map(Spacing(True), text.split())) == 'the "well-known" 1,000 (one), it\'s.\n"b", c'


def test_a_quotation_that_is_left_open_ends_with_its_line():
    text = '<eos> " a <eos> " b " c'
    assert "".join(map(Spacing(True), text.split())) == '\n"a\n"b" c'
    assert "".join(map(Spacing(True, breaks=False), text.split())) == '<eos> "a <eos> "b" c'


# --- Streams ---


def test_greedy_text_is_the_prompt_and_what_the_model_finds_most_likely():
    model = language_model(dtype=torch.float32).eval()
    pieces = list(tell(model, WORDS, f"{PROMPT} x", GenerateOptions(tokens=6, temperature=0)))
    assert pieces[0] == f"{PROMPT} <unk>"
    ids = torch.tensor([WORDS.encode(prompt_words(f"{PROMPT} x"))])
    expected = WORDS.decode(model.generate(ids, 6, temperature=0)[0])
    assert [piece.strip() or "<eos>" for piece in pieces[1:]] == expected


def test_words_come_as_they_are_made():
    """The first one does not wait for the others: an endless text would never end."""
    model = language_model(dtype=torch.float32).eval()
    pieces = tell(model, WORDS, PROMPT, GenerateOptions(tokens=10**12, seed=0))
    assert next(pieces) == PROMPT
    assert next(pieces).strip() in WORDS


@pytest.mark.parametrize("prompt", [PROMPT, "word0", ""])
def test_streams_are_the_texts_of_one_batch(prompt):
    """The prompt is read once, in one row: each stream goes on as if it had read the prompt itself."""
    model = language_model(dtype=torch.float32).eval()
    options = GenerateOptions(tokens=9, seed=3, streams=40, temperature=3.0)
    lines = list(tell_many(model, WORDS, prompt, options))
    ids = torch.tensor([WORDS.encode(prompt_words(prompt))] * 40)
    made = model.generate(ids, 9, seed=3, temperature=3.0)
    assert lines == [" ".join([*prompt.split(), *WORDS.decode(row)]) for row in made]
    assert len(set(lines)) > 30


def test_one_line_ends_at_eos():
    model = language_model(dtype=torch.float32).eval()
    options = GenerateOptions(tokens=200, seed=0, one_line=True, streams=30, temperature=5.0)
    lines = list(tell_many(model, WORDS, PROMPT, options))
    assert all("<eos>" not in line for line in lines)
    assert len({len(line.split()) for line in lines}) > 5
    text = "".join(tell(model, WORDS, PROMPT, dataclasses.replace(options, streams=1)))
    assert "\n" not in text
    assert 4 <= len(text.split()) < 204


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "tokens=0; use at least 1"),
        ({"streams": 0}, "streams=0; use at least 1"),
        ({"tokens": 10**30}, f"tokens={10**30}; use at least 1 and at most"),
    ],
)
def test_bad_options_are_found_before_a_model_is_loaded(options, message, tmp_path):
    with pytest.raises(InvalidInput, match=message):
        check_options(GenerateOptions(**options))
    with pytest.raises(InvalidInput, match="is a folder; give a file"):
        check_options(GenerateOptions(out=tmp_path))


# --- Folders ---


@pytest.mark.parametrize("save", [saved_model, saved_run])
def test_a_run_and_a_saved_model_give_the_model_and_its_words(save, tmp_path):
    model = save(tmp_path / "here")
    loaded, words = load_language_model(tmp_path / "here")
    assert words.digest == WORDS.digest
    assert not loaded.training
    assert torch.equal(loaded(random_tokens(2, 5))[0], model(random_tokens(2, 5))[0])


def test_a_checkpoint_of_a_run_has_the_words_of_the_run(tmp_path):
    saved_run(tmp_path / "run")
    assert load_language_model(tmp_path / "run" / "best")[1].digest == WORDS.digest


def break_words(folder):
    (folder / "words.txt").write_text("<eos>\n<unk>\nword0\n")


def break_best(folder):
    (folder / "best" / "model.safetensors").write_bytes(b"cut")


def remove_words(folder):
    (folder / "words.txt").unlink()


def only_begun(folder):
    (folder / "best").rename(folder / "last")
    (folder / ".lock").touch()


def swap_words(folder):
    """As many words, each with the meaning of another."""
    words = (folder / "words.txt").read_text().split()
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words[:2] + words[:1:-1]))


@pytest.mark.parametrize("change", [swap_words, remove_words])
def test_a_run_has_the_words_that_its_best_checkpoint_was_saved_with(change, tmp_path):
    saved_run(tmp_path / "run")
    change(tmp_path / "run")
    assert load_language_model(tmp_path / "run")[1].digest == WORDS.digest


@pytest.mark.parametrize(
    ("make", "damage", "message"),
    [
        (saved_model, break_words, "reads 23 and writes 23 words, but its words.txt has 3"),
        (saved_model, remove_words, "has no words.txt, so it is no language model"),
        (saved_run, break_best, "model.safetensors does not have its checksum"),
        (saved_run, only_begun, "has no best checkpoint yet"),
    ],
)
def test_a_folder_that_does_not_fit_is_one_line(make, damage, message, tmp_path, capsys):
    make(tmp_path / "model")
    damage(tmp_path / "model")
    code, out, err = run(capsys, "generate", str(tmp_path / "model"), "--prompt", "word0")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


# --- The command ---


def test_the_command_writes_the_text_and_says_once_what_it_does_not_know(tmp_path, capsys):
    saved_run(tmp_path / "run")
    arguments = ["generate", str(tmp_path / "run"), "--prompt", "word0 x y", "--tokens", "7", "--seed", "1", "--device", "cpu"]
    code, out, err = run(capsys, *arguments)
    assert code == 0
    assert out.startswith("word0 <unk> <unk>")
    assert len(out.replace("\n", " <eos> ").split()) == 3 + 7 + 1
    unknown, beyond = err.splitlines()
    assert unknown == "rfwp: not in the vocabulary, read as <unk>: x, y"
    assert beyond.startswith("rfwp: this model was trained on 8 words at a time")
    assert run(capsys, *arguments)[1] == out


def test_the_command_reads_the_prompt_from_standard_input(tmp_path, capsys, monkeypatch):
    saved_model(tmp_path / "model")
    for begins in (b"", b"\xef\xbb\xbf"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(begins + b"word1 word2\nword3\n")))
        code, out, err = run(capsys, "generate", str(tmp_path / "model"), "--prompt", "-", "--tokens", "1", "--seed", "0")
        assert (code, err) == (0, "")
        assert out.startswith("word1 word2\nword3")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    code, _, err = run(capsys, "generate", str(tmp_path / "model"), "--prompt", "-")
    assert code == 2
    assert "standard input is not UTF-8 (byte 0)" in err
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = run(capsys, "generate", str(tmp_path / "model"), "--prompt", "-")
    assert (code, err) == (2, "rfwp: standard input is closed; give the text behind --prompt\n")


def test_a_text_that_is_cut_off_ends_its_line(tmp_path, capsys, monkeypatch):
    saved_model(tmp_path / "model")

    def interrupted(*_):
        yield "word1"
        yield " word2"
        raise KeyboardInterrupt

    monkeypatch.setattr(rfwp.lm.generate, "tell", interrupted)
    code, out, err = run(capsys, "generate", str(tmp_path / "model"))
    assert (code, out) == (130, "word1 word2\n")
    assert err.endswith("rfwp: interrupted\n")


def test_a_thousand_streams_go_into_a_file(tmp_path, capsys):
    saved_model(tmp_path / "model")
    arguments = ["--prompt", "word0", "--tokens", "3", "--seed", "0", "--streams", "1000", "--top-k", "9"]
    file = tmp_path / "new" / "lines.txt"
    code, out, _ = run(capsys, "generate", str(tmp_path / "model"), *arguments, "--out", str(file))
    assert code == 0
    lines = file.read_text().splitlines()
    assert len(lines) == 1000
    assert {len(line.split()) for line in lines} == {4}
    assert out == f"-> {file}\n"
    code, out, _ = run(capsys, "generate", str(tmp_path / "model"), *arguments)
    assert out.splitlines() == lines


def test_a_link_to_a_file_stays_a_link(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    write_lines(iter(["word1"]), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "word1\n"


def test_a_file_that_cannot_be_written_is_one_line(tmp_path, capsys):
    saved_model(tmp_path / "model")
    (tmp_path / "file").touch()
    code, _, err = run(capsys, "generate", str(tmp_path / "model"), "--tokens", "2", "--out", str(tmp_path / "file" / "x.txt"))
    assert code == 2
    assert "cannot write" in err
    assert len(err.strip().splitlines()) == 1


def test_whoever_stops_reading_ends_the_text_quietly(tmp_path):
    saved_model(tmp_path / "model")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "rfwp", "generate", str(tmp_path / "model"), "--tokens", "100000"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    os.close(writer)
    # which backend runs is said, nothing else
    assert "Error" not in done.stderr
    assert len(done.stderr.split("INFO")) == 2
