"""A model on its device: whole, or this process's part of it."""

from rfwp.models import SequenceModel
from rfwp.train.distributed import World
from rfwp.train.speed import Speed
from rfwp.train.store import Store


def place(model: SequenceModel, world: World, speed: Speed) -> type[Store]:
    """Move it there; what keeps its checkpoints comes back."""
    # imported here because it brings all of PyTorch's sharding
    if speed.checkpoint_blocks:
        from rfwp.train.sharded import checkpoint_blocks

        checkpoint_blocks(model)
    if not (speed.shard and world.size > 1):
        model.to(world.device)
        return Store
    from rfwp.train.sharded import shard
    from rfwp.train.sharded_store import ShardedStore

    shard(model, world)
    return ShardedStore
