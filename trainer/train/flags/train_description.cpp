#include "trainer/base/program/failure.h"
#include "trainer/train/flags/checkpoint_flags.h"
#include "trainer/train/flags/evaluate_flags.h"
#include "trainer/train/flags/exchange_flags.h"
#include "trainer/train/flags/train_flags.h"
#include "trainer/train/flags/worker_flags.h"

namespace narrowcast {

program::Description train_description() {
  std::vector<std::string> exchange = exchange_flags();
  exchange.insert(exchange.end(), {"backend", "timeout_seconds"});
  return {.name = "narrowcast-train",
          .version = NARROWCAST_VERSION,
          .summary = "trains a model on all ranks of a job, or verifies the gradients of the communication hooks.",
          .usage = "[narrowcast-run --nproc_per_node=N] narrowcast-train [flags]",
          .groups = {{"Model", {"model", "layers", "heads", "width", "context", "hidden"}},
                     {"Data", {"data", "seed"}},
                     {"Training",
                      {"steps", "batch_size", "accumulation_steps", "optimizer", "learning_rate", "schedule",
                       "min_learning_rate", "warmup_steps", "weight_decay", "momentum", "clip_grad_norm",
                       "skip_nonfinite_steps"}},
                     {"Processors", {"device", "precision", "threads"}},
                     {"Evaluation and output",
                      {"eval_every", "eval_batches", "log_every", "sample_length", "output_dir", "overwrite"}},
                     {"Checkpoints", checkpoint_flags()},
                     {"Use of a trained model", evaluation_flags()},
                     {"Exchange of gradients", exchange},
                     {"Place in the job", worker_flags()},
                     {"Checks", {"verify_gradients", "dump_gradients", "tolerance_scale", "dry_run"}}},
          .examples = {{"train on two processes with 8-bit gradients",
                        "narrowcast-run --nproc_per_node=2 narrowcast-train --model=char_gpt --data=book.txt "
                        "--hook=int8 --output_dir=runs/book"},
                       {"go on after an interruption: the same line again",
                        "narrowcast-run --nproc_per_node=2 narrowcast-train --data=book.txt --hook=int8 "
                        "--checkpoint_dir=runs/book/checkpoints --resume"},
                       {"see what a trained model is worth, and what it writes",
                        "narrowcast-train --evaluate=runs/book/model.safetensors --data=book.txt --generate=500"},
                       {"see what would be done", "narrowcast-train --data=book.txt --dry_run"},
                       {"verify every hook's gradients on the task of PyTorch's own test",
                        "narrowcast-run --nproc_per_node=2 narrowcast-train --model=ddp_comm_hook_task "
                        "--verify_gradients"}},
          .exit_codes = program::common_exit_codes(),
          .exit_note = ""};
}

}  // namespace narrowcast
