"""Language models on the page: surprise, cut context, predictions and continuations are the model's own."""

import json
import math

import pytest
import torch
from starlette.testclient import TestClient

from rfwp.errors import InvalidInput
from rfwp.play import language, server
from rfwp.play.shown import load_all
from tests.lm.saved import saved_run
from tests.play.small import save, save_language_model
from tests.play.test_server import refused

TEXT = "word3 word4 , strange word5\nword3 word4 , word9"
READ = ["<eos>", "word3", "word4", ",", "<unk>", "word5", "<eos>", "word3", "word4", ",", "word9"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    saved_run(folder / "lm-run", core="delta_rnn")
    arguments = [save_language_model(folder / "lm", "rdn"), str(folder / "lm-run"), save(folder / "code", "code-execution-3/rdn")]
    return load_all(arguments)


@pytest.fixture
def client(shown):
    return TestClient(server.make_app(shown), base_url="http://127.0.0.1:8753", raise_server_exceptions=False)


def read(client, text=TEXT, model="lm"):
    answer = client.post("/api/trace", json={"model": model, "text": text})
    assert answer.status_code == 200, answer.text
    return answer.json()


def go_on(client, **changes):
    return client.post("/api/continue", json={"model": "lm", "text": TEXT, "words": 5, "seed": 1} | changes)


def log2_p(shown, ids):
    """Of each word but the first, by the whole distribution."""
    with torch.no_grad():
        logits, _ = shown.model(torch.tensor([ids]))
    log_p = logits[0].log_softmax(-1) / math.log(2)
    return [log_p[t, ids[t + 1]].item() for t in range(len(ids) - 1)]


def test_runs_and_saved_models_are_shown_with_their_words(shown, client):
    assert [model.kind for model in shown.values()] == ["language", "language", "code-execution"]
    first, run, _ = client.get("/api/models").json()["models"]
    assert (first["words"], first["layers"], first["heads"], run["name"]) == (23, 2, 2, "lm-run")
    # hundreds of thousands of words in the largest one
    assert "symbols" not in first


@pytest.mark.parametrize("model", ["lm", "lm-run"])
def test_surprise_is_the_models(client, shown, model):
    data = read(client, model=model)
    assert data["tokens"] == [word if word != "<unk>" else "strange" for word in READ]
    assert (data["unknown"], data["truth"]) == ([4], [*READ[1:], ""])
    expected = [-p for p in log2_p(shown[model], shown[model].words.encode(READ))]
    assert data["surprise"][0] is None
    assert data["surprise"][1:] == pytest.approx(expected, abs=2e-3)


def test_text_that_ends_a_line_is_read_so(client):
    assert read(client, "word1\n")["tokens"] == ["<eos>", "word1", "<eos>"]
    assert read(client, "\nword1")["tokens"] == ["<eos>", "<eos>", "word1"]


def test_step_has_the_likeliest_words_only(client, shown):
    key, words = read(client)["id"], shown["lm"].words
    data = client.get(f"/api/trace/{key}/step?t=3&layer=1&head=1").json()
    with torch.no_grad():
        logits, _ = shown["lm"].model(torch.tensor([words.encode(READ[:4])]))
    likely = logits[0, -1].softmax(-1).topk(5)
    assert [word for word, _ in data["expected"]] == words.decode(likely.indices)
    assert [p for _, p in data["expected"]] == pytest.approx(likely.values.tolist(), abs=1e-4)
    assert data["matrices"][0]["name"] == "W"
    (exported,) = client.get(f"/api/trace/{key}/export?t=3").json()["models"]
    assert (exported["token"], exported["truth"], len(exported["probabilities"])) == (",", "<unk>", 20)
    assert exported["surprise"] == pytest.approx(read(client)["surprise"][3])


@pytest.mark.parametrize("context", [1, 3, 7])
def test_cut_context_is_that_of_the_last_words_alone(client, shown, context):
    data = read(client)
    cut = client.get(f"/api/trace/{data['id']}/cut?context={context}").json()["surprise"]
    ids = shown["lm"].words.encode(READ)
    for t in range(1, len(ids)):
        expected = -log2_p(shown["lm"], ids[max(0, t - context) : t + 1])[-1]
        assert cut[t] == pytest.approx(expected, abs=2e-3), t
    assert cut[: context + 1] == data["surprise"][: context + 1]
    assert cut != data["surprise"]


def test_context_as_long_as_the_text_cuts_nothing(client):
    data = read(client)
    assert client.get(f"/api/trace/{data['id']}/cut?context=10").json()["surprise"] == data["surprise"]


def test_many_stretches_are_read_in_parts(client, shown, monkeypatch):
    key = read(client)["id"]
    once = client.get(f"/api/trace/{key}/cut?context=2").json()
    monkeypatch.setattr(language, "_AT_ONCE", 3)
    assert client.get(f"/api/trace/{key}/cut?context=2").json()["surprise"] == pytest.approx(once["surprise"], abs=2e-3)


def test_text_is_continued_word_by_word(client, shown):
    lines = go_on(client).text.splitlines()
    words = [json.loads(line)["word"] for line in lines]
    assert len(words) == 5
    assert all(word in shown["lm"].words for word in words)
    assert go_on(client).text.splitlines() == lines
    greedy = json.loads(go_on(client, temperature=0, words=1).text)["word"]
    key = read(client)["id"]
    assert client.get(f"/api/trace/{key}/step?t=10").json()["expected"][0][0] == greedy


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"words": 0}, ("words=0 does not fit; use 1 to 200",)),
        ({"words": 201}, ("words=201",)),
        ({"words": True}, ("'words' of type int, saw bool",)),
        ({"temperature": -1}, ("temperature=-1 does not fit; use 0 to 5",)),
        ({"temperature": "hot"}, ("'temperature' of type float, saw str",)),
        ({"text": " \n "}, ("the text is empty",)),
        ({"text": "word1 " * 401}, ("401 words", "at most 400")),
        ({"text": "w" * 12_001}, ("12,001 characters",)),
        ({"model": "code"}, ("code is no language model",)),
        ({"model": "l"}, ("unknown model",)),
    ],
)
def test_mistakes_are_one_line_before_anything_is_streamed(client, changes, words):
    refused(go_on(client, **changes), 400, *words)


def test_texts_beyond_the_page_are_refused(client):
    refused(client.post("/api/trace", json={"model": "lm", "text": "word1 " * 401}), 400, "401 words", "at most 400")
    refused(client.post("/api/trace", json={"model": "lm", "text": " "}), 400, "the text is empty")
    key = read(client)["id"]
    refused(client.get(f"/api/trace/{key}/cut?context=101"), 400, "use 0 to 100")
    refused(client.get(f"/api/trace/{key}/cut?context=0"), 400, "use 1 to 100")
    refused(client.get(f"/api/trace/{key}/difference/{key}"), 400, "only programs and lists are compared")
    refused(client.get("/api/generate?model=lm&size=3"), 400, "reads no programs")


def test_cut_context_is_for_language_models(client):
    key = read(client, "x = 1 ;", "code")["id"]
    refused(client.get(f"/api/trace/{key}/cut?context=3"), 400, "code is no language model")


def test_language_model_without_fast_weights_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="has none: its layers are Attention"):
        load_all([save_language_model(tmp_path / "lm", "attention")])
