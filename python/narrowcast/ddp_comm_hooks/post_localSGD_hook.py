"""torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook."""
from typing import Optional

import torch
import torch.distributed as dist

from narrowcast._options import Option, wrong
from narrowcast.comm_hook import CommHook, averaging_in_place, check_state

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]


class PostLocalSGDState(CommHook):
    """The state of post_localSGD_hook, for one model, with PyTorch's arguments: gradients are averaged over process_group in the
    first start_localSGD_iter steps, and then in groups of consecutive ranks.

    subgroup: this rank's group, one of those of torch.distributed.new_subgroups. None: the ranks of each node.
    post_local_gradient_allreduce: False to average no gradients at all after the start.

    Something else must average the parameters, e.g. PyTorch's PeriodicModelAverager. The first bucket raises ValueError, on all
    ranks, if a rank's subgroup is not one of equal groups of consecutive ranks."""

    def __init__(self, process_group: Optional[dist.ProcessGroup], subgroup: Optional[dist.ProcessGroup], start_localSGD_iter: int,
                 post_local_gradient_allreduce: bool = True) -> None:
        options: dict[str, Option] = {"outer_warmup": start_localSGD_iter, "local_group": None}
        if not post_local_gradient_allreduce:
            options["local_group"] = 1
        elif subgroup is not None:
            try:
                options["local_group"] = _size_of_groups(process_group, subgroup)
            except ValueError as error:
                options = wrong(error)
        super().__init__("post_local_sgd", process_group, **options)


def _size_of_groups(process_group: Optional[dist.ProcessGroup], subgroup: dist.ProcessGroup) -> int:
    if subgroup == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("subgroup: must be the group of this rank, but this rank is not in it")
    everyone = dist.get_process_group_ranks(dist.group.WORLD if process_group is None else process_group)
    members = dist.get_process_group_ranks(subgroup)
    size = len(members)
    first = everyone.index(members[0]) if members[0] in everyone else 0
    if first % size or everyone[first:first + size] != members:
        raise ValueError(f"subgroup: must be one of equal groups of consecutive ranks of {everyone}, but has the ranks {members}")
    return size


@averaging_in_place
def post_localSGD_hook(state: PostLocalSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages over all ranks, later in groups."""
    check_state(state, PostLocalSGDState, "PostLocalSGDState(None, None, 100)")
    return state.run(bucket)
