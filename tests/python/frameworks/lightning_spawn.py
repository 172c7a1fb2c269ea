"""Trains in processes that Lightning spawns, with a strategy that has a hook, by an argument or by a callback. Both give the same bits."""
import narrowcast
from lightning_rank import SENT, AverageGradients, OnCpu, by_lightning


def main():
    strategy = OnCpu(start_method="spawn", ddp_comm_state=narrowcast.CommHook("int8", **SENT), ddp_comm_hook=narrowcast.comm_hook)
    parameters, _ = by_lightning(strategy)
    by_callback, _ = by_lightning("ddp_spawn", [AverageGradients("int8", **SENT)])
    print("equal bits:", parameters.equal(by_callback))


if __name__ == "__main__":
    main()
