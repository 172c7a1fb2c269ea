#include "trainer/base/program/exit_code.h"
#include "trainer/launcher/flags/group_flags.h"
#include "trainer/launcher/flags/run_flags.h"

namespace narrowcast {

program::Description run_description() {
  return {
      .name = "narrowcast-run",
      .version = NARROWCAST_VERSION,
      .summary =
          "starts the ranks of a job on this machine, shows what they write, and ends them all, or starts them all "
          "again, when one fails; on several machines together with its like there. Arguments after the program's name "
          "are the program's own.",
      .usage = "narrowcast-run [flags] PROGRAM [arguments]",
      .groups = {{"Workers",
                  {"nproc_per_node", "role", "max_restarts", "monitor_interval", "shutdown_timeout",
                   "signals_to_handle"}},
                 {"Nodes", group_flags()},
                 {"Output", {"prefix", "log_dir", "redirects", "tee", "local_ranks_filter"}},
                 {"For those who know torchrun", {"no_python", "module", "start_method"}}},
      .examples = {{"two ranks of the trainer",
                    "narrowcast-run --nproc_per_node=2 narrowcast-train --model=char_gpt --hook=int8"},
                   {"a rank for each GPU, their output in files",
                    "narrowcast-run --nproc-per-node=gpu --log_dir=logs ./my_trainer"},
                   {"the first of two machines; the other has --node_rank=1",
                    "narrowcast-run --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 --nproc_per_node=8 ./my_trainer"},
                   {"two to four machines that may come and go; the same on each",
                    "narrowcast-run --nnodes=2:4 --rdzv_backend=c10d --rdzv_endpoint=10.0.0.1:29400 --max_restarts=3 "
                    "./my_trainer"}},
      .exit_codes = {{program::kSuccess, "every rank succeeded"},
                     {program::kWrongUse,
                      "wrong use: a flag, a program that cannot be executed, a port in use; no rank did anything"},
                     {program::kPeerFailed, "another node was lost, or could not be reached"},
                     {program::kInternalError, "an internal error: please report it"}},
      .exit_note =
          "Otherwise that of the rank that failed first: its own, or 128 + N if signal N ended it. Also 128 + N if "
          "signal N stopped the job.",
      .positionals = program::Positionals::kEndTheFlags};
}

}  // namespace narrowcast
