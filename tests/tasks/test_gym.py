"""Any gymnasium environment: vectors, images, action numbers, and what cannot be learned."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rfwp.config import GymConfig
from rfwp.errors import InvalidInput, MissingExtra, UnknownName
from rfwp.tasks.environments import make


class Seen(gymnasium.Env):
    """Shows a constant, takes actions 5 and 6, and gives the action as reward."""

    action_space = Discrete(2, start=5)

    def __init__(self, shape, dtype):
        self.observation_space = Box(0, 255, shape, dtype)
        self._shown = np.arange(np.prod(shape)).reshape(shape).astype(dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._shown, {}

    def step(self, action):
        if action == 6:
            raise RuntimeError("the floor fell in")
        return self._shown, float(action), False, False, {}


@pytest.fixture
def register():
    def register(shape, dtype):
        gymnasium.register("Seen-v0", entry_point=lambda: Seen(shape, dtype), disable_env_checker=True)
        return make(GymConfig("Seen-v0"), 2)

    yield register
    gymnasium.registry.pop("Seen-v0", None)


def test_cart_pole_falls_when_pushed_one_way():
    cart_pole = make(GymConfig("CartPole-v1"), 3)
    assert (cart_pole.n, cart_pole.shape, cart_pole.dtype, cart_pole.actions) == (3, (4,), np.float32, 2)
    cart_pole.reset(seed=1)
    while not (episodes := cart_pole.finished()):
        cart_pole.send(np.zeros(3, int))
        step = cart_pole.recv()
    # the reward is that of the last step, the observation already that of the next start
    assert (step.reward == 1).all()
    assert (np.abs(step.observation[step.done]) < 0.05).all()
    assert all(episode.whole and episode.score == episode.steps < 15 for episode in episodes)
    cart_pole.close()


@pytest.mark.parametrize(
    ("shape", "dtype", "shown", "shown_dtype"),
    [
        ((6, 5, 3), np.uint8, (3, 6, 5), np.uint8),
        ((6, 5), np.uint8, (1, 6, 5), np.uint8),
        ((4, 6, 5), np.uint8, (4, 6, 5), np.uint8),
        ((5, 6, 7), np.uint8, (210,), np.float32),
        ((7,), np.uint8, (7,), np.float32),
        ((2, 3), np.float64, (6,), np.float32),
        ((), np.float32, (1,), np.float32),
    ],
)
def test_images_come_channels_first_and_everything_else_as_a_vector(register, shape, dtype, shown, shown_dtype):
    environment = register(shape, dtype)
    assert (environment.shape, environment.dtype) == (shown, shown_dtype)
    observation = environment.reset(seed=1).observation
    expected = np.arange(np.prod(shape)).reshape(shape)
    expected = np.moveaxis(expected, -1, 0) if shape == (6, 5, 3) else expected.reshape(shown)
    np.testing.assert_array_equal(observation, np.stack([expected] * 2))
    environment.close()


def test_actions_count_from_0_and_errors_say_where_they_come_from(register):
    environment = register((3,), np.float32)
    environment.reset(seed=1)
    environment.send(np.array([0, 0]))
    assert environment.recv().reward.tolist() == [5, 5]
    environment.send(np.array([0, 1]))
    with pytest.raises(RuntimeError, match="the floor fell in") as caught:
        environment.recv()
    assert caught.value.__notes__ == ["in the environment Seen-v0"]
    environment.close()


def test_what_cannot_be_learned_is_refused_in_one_line():
    with pytest.raises(InvalidInput, match=r"'Pendulum-v1' has actions Box\(.*; only discrete actions can be learned"):
        make(GymConfig("Pendulum-v1"), 1)
    with pytest.raises(InvalidInput, match=r"'FrozenLake-v1' has observations Discrete\(16\); only a box"):
        make(GymConfig("FrozenLake-v1"), 1)


def test_observations_of_nothing_are_refused(register):
    with pytest.raises(InvalidInput, match=r"'Seen-v0' has observations Box\(.*\), which are empty"):
        register((0,), np.float32)


def test_atari_games_are_sent_to_their_own_emulators():
    with pytest.raises(InvalidInput, match="'ALE/Pong-v5' is an Atari game; use AtariConfig"):
        make(GymConfig("ALE/Pong-v5"), 1)


def test_unknown_environments_come_with_a_proposal():
    with pytest.raises(UnknownName, match="unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'"):
        make(GymConfig("CartPol-v1"), 1)
    with pytest.raises(InvalidInput, match="environment 'no_such_module:Game-v0' cannot be made"):
        make(GymConfig("no_such_module:Game-v0"), 1)


def test_a_module_of_this_folder_is_found_as_python_m_would(tmp_path, monkeypatch):
    (tmp_path / "my_games.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Mine-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=10)\n"
    )
    monkeypatch.chdir(tmp_path)
    # as in a command that pip installed
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    environment = make(GymConfig("my_games:Mine-v0"), 2)
    assert environment.actions == 2
    environment.close()
    gymnasium.registry.pop("Mine-v0")


def test_missing_gymnasium_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtra, match=r'gymnasium needs: pip install "rfwp\[atari\]"'):
        make(GymConfig(), 1)
