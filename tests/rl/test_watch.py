"""Watching an agent: the same game as it plays, in colour, with its own numbers."""

import numpy as np
import pytest
import torch

from rfwp.config import AgentConfig, AtariConfig, GymConfig, LSTMConfig, MemoryGameConfig
from rfwp.models import Agent
from rfwp.rl.evaluate import Player
from rfwp.rl.watch import CELL, Watched, blocks, image
from rfwp.tasks.environments import make

SHOWN = {
    "catch": (MemoryGameConfig("catch"), {"actions": 3, "vector": 50}, (10 * CELL, 5 * CELL, 3)),
    "t-maze": (MemoryGameConfig("t-maze", length=3), {"actions": 4, "vector": 4}, (CELL, 4 * CELL, 3)),
    "cart pole": (GymConfig("CartPole-v1"), {"actions": 2, "vector": 4}, (CELL, 4 * CELL, 3)),
}


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


def test_numbers_are_brighter_the_larger_and_negative_ones_red():
    picture = blocks(np.array([0.0, 0.5, 1.0, -1.0, 9.0], np.float32))
    middle = [tuple(picture[CELL // 2, CELL * n + CELL // 2].tolist()) for n in range(5)]
    assert middle == [(30, 30, 30), (142, 142, 142), (255, 255, 255), (255, 30, 30), (255, 255, 255)]


def test_an_image_is_shown_with_its_colours_or_in_grey():
    colour, grey = np.zeros((3, 4, 5), np.uint8), np.zeros((4, 4, 5), np.uint8)
    colour[1], grey[-1] = 7, 9
    assert image(colour)[0, 0].tolist() == [0, 7, 0]
    assert image(grey)[0, 0].tolist() == [9, 9, 9]
