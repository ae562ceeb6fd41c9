"""The page's server: right numbers for the page, one line for a mistake, nothing for other sites."""

import base64
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
import torch
from starlette.testclient import TestClient

import rfwp
from rfwp.errors import InvalidInput
from rfwp.play import server, text_routes, traces
from rfwp.play.shown import load_all
from tests.play.small import LIST, PAPER, floats, save, save_three
from tests.test_cli import run as run_command


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    return load_all(save_three(tmp_path_factory.mktemp("models")))


@pytest.fixture
def client(shown):
    return TestClient(server.make_app(shown), base_url="http://127.0.0.1:8753", raise_server_exceptions=False)


def read(client, text=PAPER, model="delta-rnn"):
    answer = client.post("/api/trace", json={"model": model, "text": text})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer, status, *words):
    assert answer.status_code == status
    line = answer.json()["error"]
    assert "\n" not in line
    assert all(word in line for word in words), line


# --- What the page gets ---


def test_page_needs_nothing_but_its_own_files(client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    files = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)
    assert files
    seen = set()
    while files:
        path = files.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert not re.search(r"https?://(?!www\.w3\.org/)", answer.text), path
        files += [f"/static/{name}" for name in re.findall(r'from "\./([^"]+)"', answer.text)]
    assert {path.removeprefix("/static/") for path in seen} == {file.name for file in server.STATIC.iterdir()} - {"index.html"}


def test_models_are_described(client):
    data = client.get("/api/models").json()
    first, second, lists = data["models"]
    assert [m["name"] for m in data["models"]] == ["delta-rnn", "linear-transformer", "lists"]
    assert (first["layers"], first["heads"], first["erases"], first["recurrent"]) == (2, 2, True, True)
    assert first["rule"] == "W_t = W_{t-1} + beta (v - W_{t-1} k) ⊗ k"
    assert first["fast"] == "y_t = W_t q_t + R_t softmax(y_{t-1})"
    assert (second["erases"], second["recurrent"]) == (False, False)
    assert (lists["kind"], lists["recurrent"]) == ("listops", True)
    assert (data["examples"]["code-execution"], data["examples"]["listops"]) == (PAPER, LIST)


def test_trace_says_what_the_model_says(client, shown):
    data = read(client)
    steps = rfwp.trace(shown["delta-rnn"].model, shown["delta-rnn"].task.encode(PAPER))
    assert data["tokens"] == PAPER.split()
    assert data["truth"][-1] == "4"
    assert data["predictions"] == shown["delta-rnn"].task.target.decode(steps.logits.argmax(-1))
    assert data["variables"][-1] == {"x": 4, "y": 7}
    assert [m["name"] for m in data["matrices"]] == ["W", "R"]
    assert len(data["written"]) == data["layers"] == 2
    sent = torch.tensor(list(base64.b64decode(data["strengths"][1][0]))).view(len(data["tokens"]), 2) / 255
    torch.testing.assert_close(sent, steps.layers[1].matrices["W"].betas, atol=1 / 255, rtol=0)


def test_trace_of_a_list_has_its_nesting(client):
    data = read(client, LIST, "lists")
    assert data["truth"][-1] == "6"
    assert data["nesting"][-1] == [1, 0, 6]
    assert "variables" not in data


def test_step_has_the_traces_numbers(client, shown):
    key, t, layer, head = read(client)["id"], 9, 1, 1
    data = client.get(f"/api/trace/{key}/step?t={t}&layer={layer}&head={head}").json()
    steps = rfwp.trace(shown["delta-rnn"].model, shown["delta-rnn"].task.encode(PAPER))
    likely = steps.probabilities[t].topk(5)
    assert [answer for answer, _ in data["expected"]] == shown["delta-rnn"].task.target.decode(likely.indices)
    torch.testing.assert_close(torch.tensor([p for _, p in data["expected"]]), likely.values, atol=1e-5, rtol=0)
    for sent in data["matrices"]:
        m = steps.layers[layer].matrices[sent["name"]]
        torch.testing.assert_close(floats(sent["weights"], 2, 8, 8), m.weights[t])
        torch.testing.assert_close(floats(sent["write"], 2, 8, 8), m.weights[t] - m.weights[t - 1])
        torch.testing.assert_close(floats(sent["key"], 2, 8), m.keys[t])
        torch.testing.assert_close(floats(sent["query"], 2, 8), m.queries[t])
        torch.testing.assert_close(floats(sent["read"], 2, 8), m.reads[t])
        torch.testing.assert_close(floats(sent["shares"], t + 1), m.shares(t)[:, head])
        torch.testing.assert_close(torch.tensor(sent["beta"]), m.betas[t], atol=1e-4, rtol=0)


def test_model_without_write_strength_says_so(client):
    key = read(client, model="linear-transformer")["id"]
    (matrix,) = client.get(f"/api/trace/{key}/step?t=0").json()["matrices"]
    assert matrix["beta"] is None
    assert read(client, model="linear-transformer")["strengths"] == [[None], [None]]


def test_export_holds_every_layer(client):
    key = read(client)["id"]
    answer = client.get(f"/api/trace/{key}/export?t=21")
    assert answer.headers["content-disposition"] == 'attachment; filename="rfwp-step-22.json"'
    (data,) = answer.json()["models"]
    assert (data["token"], data["truth"], data["step"]) == (";", "4", 21)
    assert len(data["probabilities"]) == 26
    assert abs(sum(data["probabilities"].values()) - 1) < 1e-4
    assert len(data["layers"]) == 2
    assert len(data["layers"][0]["matrices"]["R"]["weights"]) == 2


def test_export_holds_both_models(client):
    one, other = read(client)["id"], read(client, model="linear-transformer")["id"]
    data = client.get(f"/api/trace/{one}/export?t=3&beside={other}").json()
    assert [(model["model"], model["step"]) for model in data["models"]] == [("delta-rnn", 3), ("linear-transformer", 3)]
    assert [list(model["layers"][0]["matrices"]) for model in data["models"]] == [["W", "R"], ["W"]]
    refused(client.get(f"/api/trace/{one}/export?t=3&beside=gone"), 404, "run the text again")


def test_difference_begins_where_the_text_does(client):
    one, other = read(client)["id"], read(client, PAPER.replace("3", "5"))["id"]
    data = client.get(f"/api/trace/{one}/difference/{other}").json()
    assert data["expectations"][:2] == [0, 0]
    assert data["memories"][0][:2] == [0, 0]
    assert min(data["memories"][0][2:]) > 0
    assert max(data["expectations"][2:]) > 0


@pytest.mark.parametrize(("model", "size"), [("delta-rnn", 2), ("delta-rnn", 100), ("lists", 1), ("lists", 15)])
def test_generated_text_can_be_read(client, shown, model, size):
    text = client.get(f"/api/generate?model={model}&size={size}&seed=3").json()["text"]
    assert text == client.get(f"/api/generate?model={model}&size={size}&seed=3").json()["text"]
    assert shown[model].task.truth(text)[-1]
    if model == "delta-rnn":
        assert size <= text.count(";") == text.split().count(";") <= size


# --- Mistakes ---


@pytest.mark.parametrize(
    ("text", "model", "words"),
    [
        ("x = 3 ; print q ;", "delta-rnn", ("character 15: unknown token 'q'",)),
        ("x = 3 ; print x", "delta-rnn", ("ends inside a statement",)),
        ("print x ;", "delta-rnn", ("character 7: x has no value yet",)),
        ("", "delta-rnn", ("the text is empty",)),
        ("[MAX 2 [MIN 4 7 ]", "lists", ("1 closing bracket missing",)),
        ("x = 3 ;", "delta-rn", ("unknown model", "did you mean 'delta-rnn'")),
        ("x = 3 ; " * 300, "delta-rnn", ("1,200 tokens", "at most 1,000")),
        ("x" * 12_001, "delta-rnn", ("12,001 characters", "at most 12,000")),
    ],
)
def test_mistakes_in_a_text_are_one_line(client, text, model, words):
    refused(client.post("/api/trace", json={"model": model, "text": text}), 400, *words)
    # and the server goes on
    assert read(client)["truth"][-1] == "4"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": 3, "text": "x"}', b"[" * 40_000, b"\xff"])
def test_bodies_that_are_no_request_are_refused(client, body):
    refused(client.post("/api/trace", content=body, headers={"content-type": "application/json"}), 400)


def test_bodies_of_another_type_or_size_are_refused(client):
    refused(client.post("/api/trace", content="{}", headers={"content-type": "text/plain"}), 415, "application/json")
    refused(client.post("/api/trace", json={"text": "x" * 100_000}), 413, "too long")


@pytest.mark.parametrize("query", ["t=22", "t=-1", "t=x", "t=1e1", "t=٣", "layer=2", "head=9", "t=99999999999999999999"])
def test_places_outside_the_trace_are_refused(client, query):
    refused(client.get(f"/api/trace/{read(client)['id']}/step?{query}"), 400, "does not fit; use 0 to")


@pytest.mark.parametrize(
    "query", ["model=delta-rnn&size=1", "model=delta-rnn&size=101", "model=lists&size=16", "model=none&size=3"]
)
def test_texts_of_other_sizes_are_refused(client, query):
    refused(client.get(f"/api/generate?{query}"), 400)


def test_traces_that_cannot_be_compared_are_refused(client):
    one, short, other = read(client)["id"], read(client, "x = 1 ;")["id"], read(client, model="linear-transformer")["id"]
    refused(client.get(f"/api/trace/{one}/difference/{short}"), 400, "of equal length")
    refused(client.get(f"/api/trace/{one}/difference/{other}"), 400, "one model")


def test_unknown_addresses_are_refused(client):
    refused(client.get("/api/trace/0123456789abcdef/step?t=0"), 404, "run the text again")
    refused(client.get("/nothing"), 404)
    refused(client.get("/api/trace"), 405)


@pytest.mark.parametrize("path", ["../server.py", "..%2fserver.py", "%2e%2e/server.py", "/etc/passwd", "%2fetc%2fpasswd", "."])
def test_no_file_but_the_pages_own_can_be_read(client, path):
    assert client.get(f"/static/{path}").status_code in (404, 405)


def test_a_failure_of_ours_is_one_line_and_the_server_goes_on(client, monkeypatch):
    key = read(client)["id"]
    monkeypatch.setattr(text_routes, "describe_step", lambda *_: 1 / 0)
    refused(client.get(f"/api/trace/{key}/step?t=0"), 500, "ZeroDivisionError")
    monkeypatch.undo()
    assert client.get(f"/api/trace/{key}/step?t=0").status_code == 200


def test_weights_that_are_damaged_are_said(tmp_path):
    folder = save(tmp_path / "m", "code-execution-3/delta-net")
    shown = load_all([folder])
    torch.nn.init.constant_(shown["m"].model.head.weight, float("nan"))
    client = TestClient(server.make_app(shown), base_url="http://localhost")
    refused(client.post("/api/trace", json={"model": "m", "text": "x = 1 ;"}), 400, "nothing but NaN")


# --- Bounds ---


def test_only_the_latest_traces_are_kept(client):
    keys = [read(client, f"x = {n % 10} ; " * (1 + n // 10))["id"] for n in range(traces.MOST_KEPT + 1)]
    assert client.get(f"/api/trace/{keys[0]}/step").status_code == 404
    assert all(client.get(f"/api/trace/{key}/step").status_code == 200 for key in keys[1:])


def test_the_same_text_is_one_trace(client):
    assert read(client)["id"] == read(client)["id"]
    assert read(client)["id"] != read(client, model="linear-transformer")["id"]


def test_memory_is_bounded(client, shown, monkeypatch):
    step = traces.bytes_a_step(shown["delta-rnn"].model)
    assert step == 2 * 2 * 2 * 8 * 8 * 4
    monkeypatch.setattr(traces, "MOST_BYTES", 30 * step)
    first, second = read(client)["id"], read(client, "x = 1 ; y = 2 ; z = 3 ;")["id"]
    assert client.get(f"/api/trace/{first}/step").status_code == 404
    assert client.get(f"/api/trace/{second}/step").status_code == 200
    answer = client.post("/api/trace", json={"model": "delta-rnn", "text": "x = 1 ; " * 8})
    refused(answer, 400, "over 32 tokens need too much memory; give at most 30")


# --- Other sites ---


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8753", "127.0.0.1.evil.example", "192.168.0.2:8753", "", "localhost.:8753"]
)
def test_other_names_for_this_machine_are_refused(client, host):
    for path in ("/", "/api/models", "/static/main.js"):
        refused(client.get(path, headers={"host": host}), 403, "is not this machine")


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:1", "https://127.0.0.1:8753", "null"])
def test_other_origins_are_refused(client, origin):
    body = {"model": "delta-rnn", "text": PAPER}
    refused(client.post("/api/trace", json=body, headers={"origin": origin}), 403, origin)
    refused(client.get("/api/models", headers={"origin": origin}), 403, origin)


def test_the_pages_own_requests_are_served(client):
    headers = {"origin": "http://127.0.0.1:8753", "sec-fetch-site": "same-origin"}
    assert client.post("/api/trace", json={"model": "delta-rnn", "text": PAPER}, headers=headers).status_code == 200
    assert client.get("/api/models", headers={"host": "localhost:8753"}).status_code == 200


def test_other_sites_may_link_to_the_page_but_not_ask_the_server(client):
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200
    refused(client.get("/api/models", headers={"sec-fetch-site": "cross-site"}), 403, "other sites")


def test_no_site_is_allowed_to_read_across_origins(client):
    assert not [name for name in client.get("/api/models").headers if name.startswith("access-control-")]


# --- The command ---


def test_first_page_waits_for_nothing_that_it_does_not_need(tmp_path):
    """PyTorch's compiler takes seconds to import; games and language models are for those who have them."""
    code = f"""
import sys
from starlette.testclient import TestClient
from rfwp.play.server import make_app
from rfwp.play.shown import load_all
client = TestClient(make_app(load_all([{save(tmp_path / "m", "code-execution-5/rdn")!r}])), base_url="http://127.0.0.1")
key = client.post("/api/trace", json={{"model": "m", "text": {PAPER!r}}}).json()["id"]
assert client.get(f"/api/trace/{{key}}/step?t=3").status_code == 200
unneeded = {{"torch._dynamo", "numba", "huggingface_hub", "rfwp.play.games", "rfwp.play.language", "rfwp.rl"}}
print(*(unneeded & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_small_answers_are_sent_at_once():
    """asyncio turns the wait for more data off where the socket says that it speaks TCP, and the connections say what it says."""
    with server.open_socket(0) as place, socket.create_connection(place.getsockname()):
        connection, _ = place.accept()
        with connection:
            assert connection.proto == socket.IPPROTO_TCP


def test_first_text_is_read_before_the_page_asks(shown):
    read_ahead = traces.Traces(shown)
    server.read_ahead(read_ahead)
    (key,) = read_ahead._kept
    assert read_ahead.add("delta-rnn", PAPER)[0] == key


def test_first_text_that_cannot_be_read_stops_nothing(tmp_path):
    shown = load_all([save(tmp_path / "m", "code-execution-3/delta-net")])
    torch.nn.init.constant_(shown["m"].model.head.weight, float("nan"))
    read_ahead = traces.Traces(shown)
    server.read_ahead(read_ahead)
    with pytest.raises(InvalidInput, match="nothing but NaN"):
        read_ahead.add("m", PAPER)


def test_page_fetches_all_its_modules_at_once(client):
    """Otherwise the browser finds out one after the other which file needs which."""
    preloaded = set(re.findall(r'rel="modulepreload" href="/static/([^"]+)"', client.get("/").text))
    assert preloaded == {file.name for file in server.STATIC.glob("*.js")} - {"main.js"}


def test_port_in_use_is_one_line_if_it_was_asked_for(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port {taken} cannot be used .* give another one with --port"):
            server.open_socket(taken)
        monkeypatch.setattr(server, "PORT", taken)
        with server.open_socket(None) as place:
            assert place.getsockname()[0] == "127.0.0.1"
            assert place.getsockname()[1] != taken
    with pytest.raises(InvalidInput, match="--port 70000 does not exist"):
        server.open_socket(70000)


def test_command_without_the_extra_names_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "rfwp.play.server")
    code, _, err = run_command(capsys, "play", "somewhere")
    assert (code, err) == (2, 'rfwp: play needs: pip install "rfwp[play]"\n')


def test_command_serves_until_interrupted(tmp_path):
    folder = save(tmp_path / "mine", "code-execution-3/delta-net")
    command = [sys.executable, "-m", "rfwp", "play", folder, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            address = re.search(r"mine: open (http://127\.0\.0\.1:\d+)", line).group(1)
            with urllib.request.urlopen(f"{address}/api/models", timeout=30) as answer:
                assert json.load(answer)["models"][0]["name"] == "mine"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "", "")
