"""Watching an agent: the same game as it plays, in colour, with its own numbers."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from rfwp.config import AgentConfig, AtariConfig, GymConfig, LSTMConfig, MemoryGameConfig
from rfwp.models import Agent
from rfwp.rl.evaluate import Player
from rfwp.rl.watch import CELL, Watched, blocks, image
from rfwp.tasks.environments import make

SHOWN = {
    "catch": (MemoryGameConfig("catch"), {"actions": 3, "vector": 50}, (10 * CELL, 5 * CELL, 3)),
    "t-maze": (MemoryGameConfig("t-maze", length=3), {"actions": 4, "vector": 4}, (CELL, 4 * CELL, 3)),
    "no screen": (GymConfig("Countdown-v0"), {"actions": 2, "vector": 1}, (CELL, CELL, 3)),
}
PICTURE = (5, 7, 3)


class Countdown(gymnasium.Env):
    """Nine, eight, seven, ...: what it shows, and how bright it draws itself if it can; over at zero."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012
    observation_space, action_space = Box(0, 9, (1,), np.float32), Discrete(2)

    def __init__(self, picture=None, missing=False, render_mode=None):
        self.picture, self.missing, self.render_mode = picture, missing, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 9
        return np.full(1, 9, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.full(1, self.left, np.float32), 1.0, self.left == 0, False, {}

    def render(self):
        assert self.render_mode == "rgb_array"
        if self.missing:
            raise gymnasium.error.DependencyNotInstalled("no brush, run `pip install brush`")
        return None if self.picture is None else np.full(self.picture, self.left, np.uint8)


@pytest.fixture(autouse=True)
def countdowns():
    """Some that can be drawn, some that cannot."""
    kinds = {"Countdown-v0": {}, "Drawn-v0": {"picture": PICTURE}, "Missing-v0": {"picture": PICTURE, "missing": True}}
    for name, kind in kinds.items():
        gymnasium.register(name, Countdown, kwargs=kind, disable_env_checker=True)
    yield
    for name in kinds:
        gymnasium.registry.pop(name)


def small_agent(**sizes):
    torch.manual_seed(0)
    return Agent(AgentConfig(core=LSTMConfig(hidden=8), channels=(2,), features=8, **sizes))


@pytest.mark.parametrize("name", SHOWN)
def test_a_game_is_shown_from_its_start_to_its_end(name):
    config, sizes, shape = SHOWN[name]
    agent = small_agent(**sizes)
    watched = Watched(agent, config, seed=3, greedy=False)
    moments = list(watched)
    assert {moment.screen.shape for moment in moments} == {shape}
    player, steps, over = Player(agent, make(config, 1), seed=3, greedy=False), 0, False
    while not over:
        _, ended = player.step()
        assert moments[steps].action == player.seen.action[0]
        assert moments[steps].value == pytest.approx(player.seen.output.value.item())
        steps, over = steps + 1, bool(ended[0])
    assert steps == len(moments)
    assert watched.over
    for moment in moments:
        assert sum(moment.probabilities) == pytest.approx(1)
        assert len(moment.probabilities) == len(watched.actions) == sizes["actions"]
    assert moments[0].score == 0


def test_an_atari_game_is_shown_in_colour_as_the_agent_plays_it():
    """With sticky actions too: the rewards of both emulators are compared at every step."""
    agent = small_agent(actions=6, pixels=42)
    config = AtariConfig("space_invaders", pixels=42, sticky=0.25, max_frames=2_400)
    watched = Watched(agent, config, greedy=False)
    moments = list(watched)
    assert watched.steps_per_s == 15
    assert watched.actions[:2] == ("NOOP", "FIRE")
    assert {moment.screen.shape for moment in moments} == {(210, 160, 3)}
    assert any((moment.screen[..., 0] != moment.screen[..., 1]).any() for moment in moments)
    assert len(moments) > 100
    assert max(moment.score for moment in moments) > 0


def test_an_environment_draws_itself_at_its_own_speed():
    watched = Watched(small_agent(actions=2, vector=1), GymConfig("Drawn-v0"))
    assert [(moment.screen.shape, int(moment.screen.max())) for moment in watched] == [(PICTURE, 9 - t) for t in range(9)]
    assert watched.steps_per_s == 25


def test_without_the_package_that_draws_it_numbers_are_shown_and_said_once(caplog):
    moments = list(Watched(small_agent(actions=2, vector=1), GymConfig("Missing-v0")))
    assert {moment.screen.shape for moment in moments} == {(CELL, CELL, 3)}
    assert [record.getMessage() for record in caplog.records] == [
        "Missing-v0 is shown without its screen: no brush, run `pip install brush`"
    ]


def test_numbers_are_brighter_the_larger_and_negative_ones_red():
    picture = blocks(np.array([0.0, 0.5, 1.0, -1.0, 9.0], np.float32))
    middle = [tuple(picture[CELL // 2, CELL * n + CELL // 2].tolist()) for n in range(5)]
    assert middle == [(30, 30, 30), (142, 142, 142), (255, 255, 255), (255, 30, 30), (255, 255, 255)]


def test_an_image_is_shown_with_its_colours_or_in_grey():
    colour, grey = np.zeros((3, 4, 5), np.uint8), np.zeros((4, 4, 5), np.uint8)
    colour[1], grey[-1] = 7, 9
    assert image(colour)[0, 0].tolist() == [0, 7, 0]
    assert image(grey)[0, 0].tolist() == [9, 9, 9]
