"""Agents on the page: what is shown is the game that the agent plays, and the server holds one game at a time."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from rfwp.config import AtariConfig, BlocksConfig, FWPConfig, GymConfig, LSTMConfig, MemoryGameConfig
from rfwp.play import games, server
from rfwp.play.picture import png
from rfwp.play.shown import load_all
from rfwp.rl.watch import Watched
from tests.play.small import floats, save, save_agent_run, save_catch
from tests.play.test_server import refused

SMALL = {"width": 8, "layers": 1, "heads": 2, "ff": 8}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    arguments = [
        save_catch(folder / "rdn", slow="recurrent"),
        save_agent_run(folder / "lstm", LSTMConfig(8), MemoryGameConfig("t-maze", length=3), actions=4, vector=4),
        save(folder / "code", "code-execution-3/rdn"),
    ]
    return load_all(arguments)


@pytest.fixture
def client(shown):
    app = server.make_app(shown)
    yield TestClient(app, base_url="http://127.0.0.1:8753", raise_server_exceptions=False)
    if app.state.games is not None:
        app.state.games.close()


def start(client, **changes):
    answer = client.post("/api/game", json={"model": "rdn", "seed": 3, "sample": True} | changes)
    assert answer.status_code == 200, answer.text
    return answer.json()


def play(client, game, steps=1):
    answer = client.post(f"/api/game/{game['id']}/play", json={"steps": steps})
    assert answer.status_code == 200, answer.text
    return answer.json()


def picture(moment):
    return np.array(Image.open(io.BytesIO(base64.b64decode(moment["frame"]))))


# --- What the page gets ---


def test_run_of_an_agent_is_shown(shown, client):
    assert [model.kind for model in shown.values()] == ["agent", "agent", "code-execution"]
    rdn, lstm, _ = client.get("/api/models").json()["models"]
    assert (rdn["layers"], rdn["heads"], rdn["recurrent"]) == (2, 2, True)
    assert (lstm["layers"], lstm["title"]) == (0, "LSTMCore")


@pytest.mark.parametrize("sample", [False, True])
def test_game_is_the_one_that_the_agent_plays(client, shown, sample):
    game = start(client, sample=sample)
    data = play(client, game, 64)
    expected = list(Watched(shown["rdn"].model, MemoryGameConfig("catch"), seed=3, greedy=not sample))
    assert (len(data["moments"]), data["steps"], data["over"]) == (len(expected), len(expected), True)
    assert len(game["actions"]) == 3
    for moment, right in zip(data["moments"], expected, strict=True):
        assert (moment["action"], moment["score"]) == (right.action, right.score)
        assert moment["value"] == pytest.approx(right.value, abs=1e-4)
        assert moment["probabilities"] == pytest.approx(right.probabilities, abs=1e-4)
        assert np.array_equal(picture(moment), right.screen)
    assert play(client, game)["moments"] == []


def test_steps_can_be_played_one_by_one(client):
    game = start(client)
    one_by_one = [play(client, game)["moments"][0] for _ in range(5)]
    assert [moment["t"] for moment in one_by_one] == [0, 1, 2, 3, 4]
    assert one_by_one == play(client, start(client), 5)["moments"]


def test_fast_weights_are_carried_from_step_to_step(client):
    game = start(client)
    data = play(client, game, 6)
    assert [m["name"] for m in data["matrices"]] == ["W"]
    weights = []
    for t in range(6):
        (matrix,) = client.get(f"/api/game/{game['id']}/step?t={t}&layer=1&head=1").json()["matrices"]
        weights.append(floats(matrix["weights"], 2, 4, 4))
        write = floats(matrix["write"], 2, 4, 4)
        torch.testing.assert_close(write, weights[t] - (weights[t - 1] if t else 0), rtol=1e-4, atol=1e-6)
        shares = floats(matrix["shares"], t + 1)
        assert shares.sum().item() == pytest.approx(1, abs=1e-3)
        size = write.square().sum((-1, -2)).sqrt()
        torch.testing.assert_close(torch.tensor(data["moments"][t]["written"][1]), size, rtol=1e-3, atol=1e-5)
    assert data["scales"][1][0] >= max(w.abs().quantile(0.998).item() for w in weights) - 1e-5
    assert [moment["restart"] for moment in data["moments"]] == [True, False, False, False, False, False]


def test_step_is_exported_with_its_numbers(client):
    game = start(client)
    moment = play(client, game, 4)["moments"][2]
    answer = client.get(f"/api/game/{game['id']}/export?t=2")
    assert answer.headers["content-disposition"] == 'attachment; filename="rfwp-step-3.json"'
    data = answer.json()
    assert (data["model"], data["seed"], data["sampled"], data["step"]) == ("rdn", 3, True, 2)
    assert data["action"] == game["actions"][moment["action"]]
    assert list(data["probabilities"].values()) == pytest.approx(moment["probabilities"], abs=1e-4)
    assert len(data["layers"]) == 2


def test_agent_without_fast_weights_can_be_watched(client):
    game = start(client, model="lstm")
    data = play(client, game, 3)
    assert (data["layers"], data["matrices"], len(data["moments"])) == (0, [], 3)
    assert client.get(f"/api/game/{game['id']}/step?t=1").json()["matrices"] == []


@pytest.mark.parametrize(
    ("environment", "sizes", "screen"),
    [
        (GymConfig("CartPole-v1"), {"actions": 2, "vector": 4}, (12, 48, 3)),
        (AtariConfig("pong", pixels=42, max_frames=400), {"actions": 6, "pixels": 42, "channels": (2,)}, (210, 160, 3)),
    ],
)
def test_other_environments_are_shown_too(tmp_path, environment, sizes, screen):
    core = BlocksConfig(FWPConfig(phi="softmax"), **SMALL)
    app = server.make_app(load_all([save_agent_run(tmp_path / "rdn", core, environment, **sizes)]))
    client = TestClient(app, base_url="http://127.0.0.1:8753")
    data = play(client, start(client), 5)
    assert len(data["moments"]) == 5
    assert picture(data["moments"][4]).shape == screen
    app.state.games.close()


def test_picture_keeps_every_pixel():
    screen = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(np.array(Image.open(io.BytesIO(png(screen)))), screen)


# --- Bounds and mistakes ---


def test_new_game_closes_the_one_before(client, monkeypatch):
    closed = []
    monkeypatch.setattr(games.Game, "close", lambda game: closed.append(game.seed))
    first = start(client, seed=1)
    second = start(client, seed=2)
    assert closed == [1]
    refused(client.post(f"/api/game/{first['id']}/play", json={}), 404, "start a new one")
    assert play(client, second)["moments"]


def test_game_is_closed_when_nobody_looks(client, monkeypatch):
    monkeypatch.setattr(games, "IDLE", 0.01)
    game = start(client)
    client.app.state.games._clock.join(10)
    refused(client.get(f"/api/game/{game['id']}/step?t=0"), 404, "this game was closed")


def test_game_that_is_closed_while_it_starts_has_its_name(client, monkeypatch):
    monkeypatch.setattr(games.Games, "_wind", games.Games.close)
    game = start(client)
    refused(client.get(f"/api/game/{game['id']}/step?t=0"), 404, "this game was closed")


def test_only_the_latest_steps_are_kept(client, shown, monkeypatch):
    monkeypatch.setattr(games, "MOST_KEPT", 4)
    game = start(client)
    data = play(client, game, 6)
    assert (data["first"], data["steps"]) == (2, 6)
    (matrix,) = client.get(f"/api/game/{game['id']}/step?t=5").json()["matrices"]
    assert len(floats(matrix["shares"], 4)) == 4
    refused(client.get(f"/api/game/{game['id']}/step?t=1"), 400, "use 2 to 5")
    refused(client.get(f"/api/game/{game['id']}/export?t=6"), 400, "use 2 to 5")


def test_memory_of_a_game_is_bounded(client, monkeypatch):
    monkeypatch.setattr(games, "MOST_BYTES", 3 * 2 * (2 * 2 * 4 * 4 * 4))
    assert play(client, start(client), 6)["first"] == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "code"}, ("code reads, it does not play",)),
        ({"model": "rd"}, ("did you mean 'rdn'",)),
        ({"seed": -1}, ("seed=-1 does not fit",)),
        ({"seed": "1"}, ("'seed' of type int, saw str",)),
        ({"sample": 1}, ("'sample' of type bool, saw int",)),
    ],
)
def test_mistakes_are_one_line(client, changes, words):
    refused(client.post("/api/game", json={"model": "rdn"} | changes), 400, *words)


def test_steps_outside_the_game_are_refused(client):
    game = start(client)
    refused(client.get(f"/api/game/{game['id']}/step?t=0"), 400, "does not fit")
    refused(client.post(f"/api/game/{game['id']}/play", json={"steps": 65}), 400, "use 1 to 64")
    play(client, game)
    refused(client.get(f"/api/game/{game['id']}/step?t=0&layer=2"), 400, "use 0 to 1")
    refused(client.post("/api/trace", json={"model": "rdn", "text": "x"}), 400, "it plays, it does not read")


def test_weights_that_are_damaged_are_said(tmp_path):
    shown = load_all([save_catch(tmp_path / "rdn")])
    torch.nn.init.constant_(shown["rdn"].model.value.weight, float("nan"))
    client = TestClient(server.make_app(shown), base_url="http://localhost")
    refused(client.post(f"/api/game/{start(client)['id']}/play", json={}), 400, "its weights may be damaged")


def test_other_sites_cannot_play(client):
    game = start(client)
    headers = {"origin": "http://evil.example"}
    refused(client.post(f"/api/game/{game['id']}/play", json={}, headers=headers), 403, "evil.example")
