"""torch.distributed.algorithms.ddp_comm_hooks.mixed_precision_hooks is not available."""
raise ImportError("narrowcast has no mixed_precision_hooks: DistributedDataParallel(mixed_precision=...) averages with PyTorch's "
                  "all-reduce and registers that hook itself, so it takes no other one; use torch.autocast with a hook of narrowcast")
