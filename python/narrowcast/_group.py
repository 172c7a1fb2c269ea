"""The process group of a call."""
from typing import Optional

import torch.distributed as dist


def group_or_default(group: Optional[dist.ProcessGroup]) -> dist.ProcessGroup:
    """The group, or the default one for None. RuntimeError if there is none, and for a group that this rank is not in."""
    group = dist.group.WORLD if group is None else group
    if group is None:
        raise RuntimeError("there is no process group: call torch.distributed.init_process_group first")
    if not isinstance(group, dist.ProcessGroup):
        raise RuntimeError(f"process_group must be a group of this rank, but is {group!r}")
    return group
