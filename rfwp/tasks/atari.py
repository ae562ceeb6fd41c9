"""Atari games: ale-py's threaded emulators, all preprocessing in C++.

Differs from the authors' code: a game starts with FIRE and then no-ops, not the other way round; a new game's stack begins
with empty frames, not with copies of its first one, and a further life keeps the stack; frames become grey before their
maximum is taken, not after.
"""

import dataclasses
from typing import Any

import numpy as np

from rfwp.config import AtariConfig
from rfwp.errors import InvalidInput, check_probability, missing_extra, unknown
from rfwp.tasks.environments import Episode, Scores, Step, check_actions, errors_name, spread_seed

PAPER_GAMES = {
    "alien": 18,
    "amidar": 6,
    "assault": 7,
    "bank_heist": 18,
    "battle_zone": 18,
    "beam_rider": 9,
    "berzerk": 18,
    "demon_attack": 6,
    "gopher": 8,
    "jamesbond": 6,
    "kung_fu_master": 14,
    "ms_pacman": 9,
    "pong": 6,
    "qbert": 6,
    "robotank": 18,
    "seaquest": 18,
    "space_invaders": 6,
    "star_gunner": 18,
    "up_n_down": 6,
    "zaxxon": 18,
}
"""The paper's games by their names in ale-py, with the number of actions that the agents had."""

PAPER_CODE = AtariConfig(
    protocol="paper_code",
    frame_skip=4,
    sticky=0.0,
    noop_max=30,
    fire_reset=True,
    life_loss_ends=True,
    max_frames=400_000,
    stack=4,
    pixels=84,
)
"""As the authors' code plays. Differs from the paper: actions are held for 4 frames, and none are sticky."""

STANDARD = dataclasses.replace(
    PAPER_CODE, protocol="standard", sticky=0.25, noop_max=0, fire_reset=False, life_loss_ends=False, max_frames=108_000
)
"""Sticky actions are the only randomness, and a game is played to its end."""

PROTOCOLS = {protocol.protocol: protocol for protocol in (PAPER_CODE, STANDARD)}
_COLOUR = {"grayscale": False, "img_height": 210, "img_width": 160, "stack_num": 1}
_MAX_FRAMES = {("paper_code", "space_invaders"): 300_000}


class Atari:
    """N copies of a game in emulator threads. Rewards are unclipped; observations are grey frames (stack, pixels, pixels).

    Where a lost life ends an episode, `finished` reports lives (a game without lives is one life) and whole games.
    `colour`: for people to look at: observations are the screen, (1, 210, 160, 3). The games are the same for the same seed.
    `parts`: an answer is of the first N / parts games that have one, `rows` says which; the next actions are for these. While
    they are chosen the emulators go on with the others.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self, config: AtariConfig, n: int, threads: int = 0, first: int = 0, colour: bool = False, parts: int = 1
    ) -> None:
        if parts < 1 or n % parts:
            raise InvalidInput(f"{n} environments cannot answer in {parts} equal parts; use a number that divides {n}")
        emulators, games = _ale_py()
        self.config = resolve(config, games)
        self.n, self.first = n, first
        self.rows = np.arange(n // parts)
        with errors_name(self.config.game):
            choices = _choices(self.config) | (_COLOUR if colour else {})
            self._emulators = emulators(self.config.game, n, batch_size=len(self.rows), num_threads=threads, **choices)
        names = [action.name for action in self._emulators.ale.get_action_set()]
        self.actions = self.config.actions or len(names)
        if not 1 <= self.actions <= len(names):
            raise InvalidInput(f"actions={self.actions}: {self.config.game} has {len(names)}; use 0 for all of them")
        self.action_names = tuple(names[: self.actions])
        self.shape: tuple[int, ...] = self._emulators.single_observation_space.shape
        self._fire = names.index("FIRE") if self.config.fire_reset and "FIRE" in names else None
        self._finished: list[Episode] = []
        self._playing = 0

    def reset(self, seed: int) -> Step:
        while self._playing:
            self.recv()
        with errors_name(self.config.game):
            observation, info = self._emulators.reset(seed=spread_seed(seed, self.n, self.first))
        self._playing = self.n - len(self.rows)
        self._first_frame = np.zeros(self.n, np.int64)
        self._new, self._life_lost = np.ones(self.n, bool), np.zeros(self.n, bool)
        self._lives, self._games = Scores(self.n, whole=False), Scores(self.n)
        self._finished = []
        return self._answer(observation, np.zeros(len(self.rows)), np.zeros(len(self.rows), bool), info)

    def send(self, actions: np.ndarray) -> None:
        """One action for each environment that answered last.

        In the first step of a further life the action is FIRE whatever the agent chose, because some games wait for it.
        Differs from the authors' code: no step without action before it, none with the third action after it.
        """
        check_actions(self.config.game, actions, len(self.rows), self.actions)
        if self._fire is not None:
            actions = np.where(self._life_lost[self.rows], self._fire, actions)
        with errors_name(self.config.game):
            self._emulators.send(actions.astype(np.int32))
        self._playing += len(self.rows)

    def recv(self) -> Step:
        assert self._playing, "recv without send"
        with errors_name(self.config.game):
            observation, reward, terminated, _, info = self._emulators.recv()
        self._playing -= len(self.rows)
        return self._answer(observation, reward, terminated, info)

    def _answer(self, observation: np.ndarray, reward: np.ndarray, terminated: np.ndarray, info: dict[str, np.ndarray]) -> Step:
        rows = self.rows = info["env_id"]
        reward, new = reward.astype(np.float32), self._new[rows]
        # the emulator's end is that of a life or of a game; only a new game begins at another frame
        first_frame = info["frame_number"] - info["episode_frame_number"]
        over = ~new & (first_frame != self._first_frame[rows])
        self._first_frame[rows] = first_frame
        # some games show no life left for some frames before they are over; that is one end, not two
        life_lost = terminated & ~over & (info["lives"] > 0)
        self._life_lost[rows] = life_lost
        done = over | life_lost
        played = ~new
        if self.config.life_loss_ends:
            self._finished += self._lives.add(reward[played], done[played], rows[played])
        self._finished += self._games.add(reward[played], over[played], rows[played])
        # the first observation after `reset` answers no action
        self._new[rows] = False
        return Step(observation, reward, done | new)

    def finished(self) -> list[Episode]:
        episodes, self._finished = self._finished, []
        return episodes

    def close(self) -> None:
        # the emulators' threads wait in a busy loop until nothing refers to them
        self._emulators = None


def resolve(config: AtariConfig, games: list[str]) -> AtariConfig:
    """With ale-py's name for the game and the protocol's value for every choice that was left open; all of them checked."""
    by_letters = {_letters(game): game for game in games}
    if _letters(config.game) not in by_letters:
        raise unknown("Atari game", config.game, games)
    if config.protocol not in PROTOCOLS:
        raise unknown("protocol", config.protocol, PROTOCOLS)
    game = by_letters[_letters(config.game)]
    protocol = dataclasses.replace(
        PROTOCOLS[config.protocol],
        game=game,
        actions=PAPER_GAMES.get(game, 0) if config.protocol == "paper_code" else 0,
        max_frames=_MAX_FRAMES.get((config.protocol, game), PROTOCOLS[config.protocol].max_frames),
    )
    chosen = {name: value for name, value in dataclasses.asdict(config).items() if value is not None}
    full = dataclasses.replace(protocol, **{**chosen, "game": game})
    for name, least in (("actions", 0), ("frame_skip", 1), ("noop_max", 0), ("max_frames", 1), ("stack", 1), ("pixels", 1)):
        if getattr(full, name) < least:
            raise InvalidInput(f"{name}={getattr(full, name)}; use at least {least}")
    assert full.sticky is not None
    check_probability("Atari", "sticky", full.sticky)
    return full


def _ale_py() -> tuple[Any, list[str]]:
    """The class of the emulators, and all games that there are."""
    try:
        from ale_py.roms import get_all_rom_ids
        from ale_py.vector_env import AtariVectorEnv
    except ImportError:
        raise missing_extra("Atari", "atari") from None
    return AtariVectorEnv, get_all_rom_ids()


def _letters(name: str) -> str:
    """Ms. Pacman, MsPacman and ms_pacman are one name."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _choices(config: AtariConfig) -> dict[str, Any]:
    """The choices in ale-py's words."""
    return {
        "autoreset_mode": "SameStep",
        # not `episodic_life`, which starts a new game after each lost life
        "life_loss_info": config.life_loss_ends,
        "reward_clipping": False,
        "frameskip": config.frame_skip,
        "repeat_action_probability": config.sticky,
        "noop_max": config.noop_max,
        "use_fire_reset": config.fire_reset,
        "max_num_frames_per_episode": config.max_frames,
        "stack_num": config.stack,
        "img_height": config.pixels,
        "img_width": config.pixels,
    }
