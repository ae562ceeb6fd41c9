"""What each of several processes gets of a batch and of the environments."""

from rfwp.config import AttentionConfig, BlocksConfig, RLRunConfig
from rfwp.errors import InvalidInput
from rfwp.rl.free import check_lag
from rfwp.train.distributed import World


def shares(config: RLRunConfig, world: World) -> tuple[int, int]:
    """Unrolls an update and environments of each process."""
    impala = config.impala
    if impala.batch % world.size:
        raise InvalidInput(f"impala.batch={impala.batch} cannot be shared by {world.size} processes; use a multiple of that")
    if impala.mode == "lockstep":
        return impala.batch // world.size, impala.batch // world.size
    if impala.environments % (world.size * impala.groups):
        groups = f"{impala.groups} groups in each of {world.size} processes" if world.size > 1 else f"{impala.groups} groups"
        raise InvalidInput(f"impala.environments={impala.environments} cannot be shared by {groups}; use a multiple of that")
    core = config.agent.core
    if isinstance(core, BlocksConfig) and isinstance(core.layer, AttentionConfig):
        raise InvalidInput("the state of attention grows with time, which free mode has no room for; use impala.mode=lockstep")
    rows, environments = impala.batch // world.size, impala.environments // world.size
    check_lag(environments, rows, impala.max_lag, impala.groups)
    return rows, environments
