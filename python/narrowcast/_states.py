"""Saved states of the ranks of an earlier run."""
from typing import Any, Sequence, Union, cast

import torch.distributed as dist

State = dict[str, Any]


def states_of_rank(saved: Union[State, Sequence[State]], group: dist.ProcessGroup,
                   entries: Sequence[str]) -> tuple[list[State], list[State]]:
    """All saved states, and those that this rank takes over. `saved`: this rank's own, or those of all former ranks in their
    order. entries: that each state has besides "rank" and "world_size". TypeError or ValueError for something else, ValueError
    for other ranks' states, and if the number of ranks has changed and there are not all."""
    states: list[State] = list(saved) if isinstance(saved, (list, tuple)) else [cast(State, saved)]
    if not states:
        raise ValueError("saved: must be a state or the states of all ranks, but is empty")
    for number, each in enumerate(states):
        if not isinstance(each, dict):
            raise TypeError(f"saved: must be what state_dict returned, or a list of such, but state {number} is a "
                            f"{type(each).__name__}")
        missing = [name for name in ("rank", "world_size", *entries) if name not in each]
        if missing:
            raise ValueError(f"saved: must be what state_dict returned, but state {number} has no '{missing[0]}'")
    rank, world_size = group.rank(), group.size()
    former, ranks = states[0]["world_size"], [each["rank"] for each in states]
    if ranks == list(range(former)):
        return states, states[rank::world_size]
    if len(states) == 1 and former == world_size:
        if ranks != [rank]:
            raise ValueError(f"the state is of rank {ranks[0]}, but this is rank {rank}")
        return states, states
    if len(states) == former:
        raise ValueError(f"the states must be in the order of their ranks, 0 to {former - 1}, but are of ranks {ranks}")
    raise ValueError(f"the state is of {former} ranks, and there are {world_size} now: pass the list of all {former} states, "
                     f"not {len(states)}")
