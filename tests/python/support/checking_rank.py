"""A rank of a launcher that runs checks of a test module's OnEachRank: checking_rank MODULE CHECK..."""
import importlib
import sys

import torch.distributed as dist

from support.ranks import end_with_result_of

if __name__ == "__main__":
    dist.init_process_group("gloo")  # Meets the others as the launcher's environment requires.
    end_with_result_of(importlib.import_module(sys.argv[1]).OnEachRank(*sys.argv[2:]))
