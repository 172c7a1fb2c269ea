// Wrong command lines of narrowcast-train. Each prints one line and has exit code 2.
#include "trainer/train/flags/train_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/trainer/train/flags/train_in_process.h"
#include "trainer/base/program/failure.h"

namespace narrowcast {
namespace {

using ::testing::AllOf;
using testing::Ending;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::train;
using testing::Words;

struct WrongUse {
  Words flags;
  std::string text;
};

void PrintTo(const WrongUse& use, std::ostream* out) { *out << ::testing::PrintToString(use.flags); }

class WrongUseTest : public ::testing::TestWithParam<WrongUse> {};

TEST_P(WrongUseTest, IsOneLineAndExitCodeTwo) {
  const Ending end = train(GetParam().flags);
  EXPECT_EQ(end.code, program::kWrongUse) << end.errors;
  EXPECT_EQ(std::count(end.errors.begin(), end.errors.end(), '\n'), 1) << end.errors;
  EXPECT_THAT(end.errors, AllOf(StartsWith("narrowcast-train: "), HasSubstr(GetParam().text)));
  EXPECT_EQ(end.output, "");
}

INSTANTIATE_TEST_SUITE_P(
    Values, WrongUseTest,
    ::testing::Values(
        WrongUse{{"--no_such_flag=1"}, "no_such_flag"}, WrongUse{{"--steps=many"}, "steps"},
        WrongUse{{"--steps=0"}, "steps: must be at least 1, but is 0"}, WrongUse{{"--hook=int3"}, "known: none, "},
        WrongUse{{"--hook=int8", "--channel_size=512"}, "--channel_size: has no effect with the hook 'int8'"},
        WrongUse{{"--channel_size=128"}, "--channel_size: has no effect with the hook 'none'"},
        WrongUse{{"--hook=allreduce", "--levels=two"}, "--levels: has no effect with the hook 'allreduce'"},
        WrongUse{{"--hook=int8", "--levels=two"}, "levels: two is impossible, because every node has one rank"},
        WrongUse{{"--hook=int8", "--node_size=-1"}, "node_size: must be at least 1, but is -1"},
        WrongUse{{"--levels=one"}, "--levels: has no effect with the hook 'none'"},
        WrongUse{{"--hook=allreduce", "--link_gbit=1"}, "--link_gbit: has no effect with the hook 'allreduce'"},
        WrongUse{{"--hook=int8", "--link_us=-1"}, "link_us: must be in 0.001..1e+09, but is -1"},
        WrongUse{{"--hook=int8", "--connections=65"}, "connections: must be auto or in 1..64, but is 65"},
        WrongUse{{"--hook=int8", "--connections=-1"}, "connections: must be auto or in 1..64, but is -1"},
        WrongUse{{"--hook=int8", "--connections=many"}, "--connections: must be auto or a number, but is 'many'"},
        WrongUse{{"--hook=allreduce", "--connections=auto"}, "--connections: has no effect with the hook 'allreduce'"},
        WrongUse{{"--hook=allreduce", "--connections=4"}, "--connections: has no effect with the hook 'allreduce'"},
        WrongUse{{"--hook=auto", "--link_gbit=1e-300"}, "link_gbit: must be in 1e-06..1e+06, but is 1e-300"},
        WrongUse{{"--sync_every=10", "--link_gbit=1e-300"}, "link_gbit: must be in 1e-06..1e+06, but is 1e-300"},
        WrongUse{{"--hook=int8", "--auto_bits=4"}, "--auto_bits: has no effect with the hook 'int8'"},
        WrongUse{{"--hook=auto", "--auto_bits=3"}, "auto_bits: must be in 4..8, but is 3"},
        WrongUse{{"--hook=int8", "--levels=2"}, "levels: must be auto, one or two, but is '2'"},
        WrongUse{{"--hook=quantize_per_channel", "--channel_size=0"}, "channel_size: must be at least 1, but is 0"},
        WrongUse{{"--hook=quantize_per_channel", "--channel_size=-7"}, "channel_size: must be at least 1, but is -7"},
        WrongUse{{"--hook=quantize_per_channel", "--channel_size=many"}, "channel_size"},
        WrongUse{{"--verify_gradients", "--channel_size=128"}, "of all hooks; give --hook"},
        WrongUse{{"--hook=int8", "--power_sgd_rank=2"}, "--power_sgd_rank: has no effect with the hook 'int8'"},
        WrongUse{{"--hook=power_sgd", "--power_sgd_rank=0"}, "power_sgd_rank: must be at least 1, but is 0"},
        WrongUse{{"--hook=power_sgd", "--power_sgd_memory=both"}, "power_sgd_memory: must be local or averaged"},
        WrongUse{{"--hook=power_sgd", "--power_sgd_start=1", "--levels=two"},
                 "levels: two is impossible, because every node has one rank"},
        WrongUse{{"--hook=quantize_per_tensor", "--link_us=50"},
                 "--link_us: has no effect with the hook 'quantize_per_tensor'"},
        WrongUse{{"--hook=power_sgd", "--link_us=-1"}, "link_us: must be in 0.001..1e+09, but is -1"},
        WrongUse{{"--hook=power_sgd", "--steps=1000"},
                 "power_sgd_start: is 1000, so that a training of 1000 steps would compress nothing"},
        WrongUse{{"--hook=power_sgd", "--verify_gradients", "--power_sgd_rank=2"},
                 "--power_sgd_rank: has no effect with --verify_gradients"},
        WrongUse{{"--verify_gradients", "--hook=none", "--error_feedback"}, "no effect with the hook 'none'"},
        WrongUse{{"--model=gpt5"}, "char_gpt"}, WrongUse{{"--data=/no/such/file.txt"}, "/no/such/file.txt"},
        WrongUse{{"--model=mlp"}, "data: mlp needs one folder"},
        WrongUse{{"--model=mlp", "--heads=2"}, "--heads: has no effect with --model=mlp"},
        WrongUse{{"--heads=5"}, "heads"}, WrongUse{{"--hidden=3"}, "--hidden: has no effect with --model=char_gpt"},
        WrongUse{{"--momentum=0.5"}, "--momentum: has no effect with --optimizer=adamw"},
        WrongUse{{"--adamw_learning_rate=0.5"}, "--adamw_learning_rate: has no effect without --optimizer=muon"},
        WrongUse{{"--adamw_parameters=head"}, "--adamw_parameters: has no effect without --optimizer=muon"},
        WrongUse{{"--optimizer=muon", "--adamw_parameters=head"}, "adamw_parameters: 'head' names no matrix"},
        WrongUse{{"--optimizer=muon", "--adamw_learning_rate=0"}, "adamw_learning_rate: must be positive, but is 0"},
        WrongUse{{"--schedule=constant", "--min_learning_rate=0"}, "min_learning_rate"},
        WrongUse{{"--dump_gradients=x"}, "without --verify_gradients"},
        WrongUse{{"--tolerance_scale=2"}, "without --verify_gradients"},
        WrongUse{{"--verify_gradients", "--steps=3"}, "--steps: has no effect"},
        WrongUse{{"--verify_gradients", "--tolerance_scale=0"}, "tolerance_scale"},
        WrongUse{{"--model=ddp_comm_hook_task"}, "only for --verify_gradients"},
        WrongUse{{"--model=ddp_comm_hook_task", "--verify_gradients", "--seed=1"}, "--seed: has no effect"},
        WrongUse{{"--generate=9"}, "--generate: has no effect without --evaluate"},
        WrongUse{{"--evaluate=m.bin"}, "m.bin must be named *.safetensors"},
        WrongUse{{"--evaluate=m.pt", "--steps=3"}, "--steps: has no effect with --evaluate"},
        WrongUse{{"--evaluate=m.pt", "--prompt=x"}, "--prompt: has no effect"},
        WrongUse{{"--evaluate=m.safetensors", "--context=3"}, "--context: has no effect"},
        WrongUse{{"--evaluate=m.pt", "--model=ddp_comm_hook_task"}, "evaluated as char_gpt or gpt or mlp"},
        WrongUse{{"--overwrite"}, "without --output_dir and --checkpoint_dir"}, WrongUse{{"--seed=-1"}, "seed"},
        WrongUse{{"--eval_batches=0", "--eval_every=2"}, "--eval_every: has no effect"},
        WrongUse{{"--accumulation_steps=5"}, "batch_size: must be divisible"},
        WrongUse{{"--static_graph", "--find_unused_parameters"}, "find_unused_parameters"},
        WrongUse{{"--bucket_cap_mb=0"}, "bucket_cap_mb=0 must be greater than 0"},
        WrongUse{{"--bucket_cap_mb=large"}, "--bucket_cap_mb: must be a number of MiB or auto, but is 'large'"},
        WrongUse{{"--bucket_cap_mb="}, "--bucket_cap_mb: must be a number of MiB or auto, but is ''"},
        WrongUse{{"--bucket_cap_mb=auto", "--verify_gradients"},
                 "--bucket_cap_mb: has no effect as auto with --verify_gradients"},
        WrongUse{{"--threads=-1"}, "threads"}, WrongUse{{"--timeout_seconds=0"}, "timeout"},
        WrongUse{{"--backend=mpi"}, "known: auto, gloo, nccl"},
        WrongUse{{"--device=cpu", "--backend=nccl"}, "backend: nccl does not move tensors on the CPU"},
        WrongUse{{"--device=tpu"}, "known: auto, cpu, cuda, cuda:N"}, WrongUse{{"--device=cuda:99"}, "cuda:99"},
        WrongUse{{"--precision=fp8"}, "known: fp32, bf16, fp16"},
        WrongUse{{"--precision=fp16", "--noskip_nonfinite_steps"}, "skip_nonfinite_steps: must be true"},
        WrongUse{{"--precision=bf16", "--verify_gradients"}, "--precision: has no effect with --verify_gradients"},
        WrongUse{{"--device=cpu", "--evaluate=m.pt"}, "--device: has no effect with --evaluate"},
        WrongUse{{"--checkpoint_every=5"}, "--checkpoint_every: has no effect without --checkpoint_dir"},
        WrongUse{{"--keep_checkpoints=5"}, "--keep_checkpoints: has no effect without --checkpoint_dir"},
        WrongUse{{"--resume"}, "--resume: has no effect without --checkpoint_dir"},
        WrongUse{{"--checkpoint_dir="}, "--checkpoint_dir: must name a folder"},
        WrongUse{{"--checkpoint_dir=d", "--checkpoint_every=0"}, "checkpoint_every: must be at least 1"},
        WrongUse{{"--checkpoint_dir=d", "--resume", "--overwrite"}, "--overwrite: has no effect with --resume"},
        WrongUse{{"--checkpoint_dir=d", "--verify_gradients"},
                 "--checkpoint_dir: has no effect with --verify_gradients"},
        WrongUse{{"--checkpoint_dir=d", "--evaluate=m.pt"}, "--checkpoint_dir: has no effect with --evaluate"},
        WrongUse{{"--resume_from="}, "--resume_from: must name a folder"},
        WrongUse{{"--interface=lo"}, "--interface=lo: has no effect in a single process"},
        WrongUse{{"--interface=lo", "--rank=0", "--world_size=1"}, "--interface=lo: has no effect"},
        WrongUse{{"--hook=post_local_sgd"}, "--hook=post_local_sgd: needs --sync_every or --sync_seconds"},
        WrongUse{{"--hook=int8", "--sync_seconds=10"}, "--sync_seconds: has no effect with the hook 'int8'"},
        WrongUse{{"--sync_seconds=10", "--sync_every=1"}, "--sync_every: has no effect with --sync_seconds"},
        WrongUse{{"--sync_seconds=10", "--fragments=1"}, "--fragments: has no effect with --sync_seconds"},
        WrongUse{{"--sync_seconds=10", "--overlap_steps=2"}, "--overlap_steps: has no effect with --sync_seconds"},
        WrongUse{{"--sync_seconds=10", "--outer_mix=0.5"}, "--outer_mix: has no effect with --sync_seconds"},
        WrongUse{{"--sync_seconds=0"}, "sync_seconds: must be positive, but is 0"},
        WrongUse{{"--sync_seconds=nan"}, "sync_seconds"},
        WrongUse{{"--sync_seconds=30", "--timeout_seconds=30"},
                 "sync_seconds: must be at most half of timeout_seconds (30), but is 30"},
        WrongUse{{"--sync_seconds=10", "--outer_warmup=600"},
                 "steps: must be more than outer_warmup (600), but is 600"},
        WrongUse{{"--sync_seconds=10", "--static_graph"}, "static_graph: is not possible with sync_seconds"},
        WrongUse{{"--sync_seconds=10", "--find_unused_parameters"}, "find_unused_parameters: makes all ranks"},
        WrongUse{{"--verify_gradients", "--hook=post_local_sgd", "--sync_seconds=2"}, "--sync_seconds: has no effect"},
        WrongUse{{"--sync_every=2", "--outer_quorum=1"},
                 "sync_every: must be at least 4 with outer_quorum, because all ranks take their first steps together, "
                 "but is 2"},
        WrongUse{{"--sync_every=4", "--outer_quorum=1", "--static_graph"},
                 "static_graph: is not possible with outer_quorum"},
        WrongUse{{"--sync_every=4", "--outer_quorum=1", "--early_stop=2", "--eval_every=4"},
                 "early_stop: 2 is not possible with outer_quorum"},
        WrongUse{{"--sync_every=4", "--outer_quorum=1", "--fragments=2"}, "--fragments: has no effect with"},
        WrongUse{{"--sync_every=4", "--outer_quorum=1", "--sync_seconds=2"}, "--sync_every: has no effect with"},
        WrongUse{{"--sync_every=4", "--outer_grace_seconds=1"},
                 "outer_grace_seconds: 1 has no effect without outer_quorum"},
        WrongUse{{"--hook=int8", "--sync_every=10"},
                 "--sync_every: has no effect with the hook 'int8'; it is for post_local_sgd"},
        WrongUse{{"--outer_format=int8_b128"}, "--outer_format: has no effect with the hook 'none'"},
        WrongUse{{"--sync_every=10", "--fragments=3"}, "sync_every: must be a multiple of fragments (3), but is 10"},
        WrongUse{{"--sync_every=10", "--overlap_steps=10"}, "overlap_steps: must be less than sync_every"},
        WrongUse{{"--sync_every=10", "--outer_mix=2"}, "outer_mix: must be in 0..1, but is 2"},
        WrongUse{{"--sync_every=10", "--outer_optimizer=adam"}, "outer_optimizer: must be average, sgd or nesterov"},
        WrongUse{{"--sync_every=10", "--outer_momentum=0.5"}, "outer_momentum: 0.5 has no effect with the outer"},
        WrongUse{{"--sync_every=10", "--outer_format=int5"}, "int5"},
        WrongUse{{"--sync_every=10", "--outer_error_feedback"}, "outer_error_feedback: has no effect with the outer"},
        WrongUse{{"--sync_every=10", "--outer_format=top2_15", "--outer_optimizer=nesterov"},
                 "outer_momentum: must be 0 with the outer format top2_15"},
        WrongUse{{"--sync_every=10", "--outer_format=top2_15", "--outer_mix=0.5"}, "outer_mix: must be 0 with the"},
        WrongUse{{"--hook=quantized_allreduce", "--hook_format=int3"},
                 "--hook_format=int3: format: unknown name 'int3'"},
        WrongUse{{"--sync_every=10", "--hook_format=bf16"}, "--hook_format: has no effect with the hook"},
        WrongUse{{"--sync_every=10", "--local_group=all"}, "--local_group: must be node, none or a number of ranks"},
        WrongUse{{"--sync_every=10", "--local_group=0"}, "local_group: must be at least 1, but is 0"},
        WrongUse{{"--sync_every=10", "--local_hook=noop"},
                 "local_hook: must be a hook that averages gradients, but is 'noop'"},
        WrongUse{{"--sync_every=10", "--local_group=none", "--local_hook=int8"},
                 "--local_hook: has no effect with groups of one rank (--local_group) and no --outer_warmup"},
        WrongUse{{"--sync_every=10", "--local_group=1", "--local_hook=int8"},
                 "--local_hook: has no effect with groups of one rank (--local_group) and no --outer_warmup"},
        WrongUse{{"--sync_every=10", "--steps=95"},
                 "steps: must be outer_warmup (0) plus a multiple of sync_every (10)"},
        WrongUse{{"--sync_every=10", "--outer_warmup=600"}, "steps: must be outer_warmup (600) plus a multiple"},
        WrongUse{{"--sync_every=10", "--find_unused_parameters"},
                 "find_unused_parameters: makes all ranks communicate"},
        WrongUse{{"--verify_gradients", "--hook=post_local_sgd", "--sync_every=2"}, "--sync_every: has no effect"},
        WrongUse{{"--optimizer=adam"}, "known: adamw, sgd"}, WrongUse{{"--sample_length=-1"}, "sample_length"}));

INSTANTIATE_TEST_SUITE_P(
    Schedules, WrongUseTest,
    ::testing::Values(
        WrongUse{{"--decay_steps=5"}, "decay_steps: has no effect with the schedule cosine; it is for wsd"},
        WrongUse{{"--schedule=linear", "--decay_steps=5"}, "decay_steps: has no effect with the schedule linear"},
        WrongUse{{"--schedule=wsd", "--decay_steps=600"},
                 "decay_steps: must be in 1..steps - warmup_steps (570), but is 600"},
        WrongUse{{"--schedule=steps"}, "known: constant, cosine, linear, wsd"},
        WrongUse{{"--early_stop=2"}, "early_stop: needs eval_every"},
        WrongUse{{"--early_stop=2", "--eval_batches=0"}, "early_stop: needs eval_every"},
        WrongUse{{"--early_stop=-1", "--eval_every=2"}, "early_stop: must be at least 0, but is -1"},
        WrongUse{{"--early_stop=2", "--eval_every=5", "--sync_every=10"}, "multiples of sync_every (10)"},
        WrongUse{{"--early_stop=2", "--verify_gradients"}, "--early_stop: has no effect with --verify_gradients"}));

INSTANTIATE_TEST_SUITE_P(
    Reports, WrongUseTest,
    ::testing::Values(WrongUse{{"--report=x.html"}, "--report: has no effect without --output_dir"},
                      WrongUse{{"--report="}, "--report: "},
                      WrongUse{{"--output_dir=run", "--report=book.txt"}, "report: must be a page named NAME.html"},
                      WrongUse{{"--tensorboard_dir="}, "--tensorboard_dir: must name a folder"},
                      WrongUse{{"--tensorboard_dir=x", "--verify_gradients"}, "--tensorboard_dir: has no effect"},
                      WrongUse{{"--compare=x"}, "--compare: needs --report"},
                      WrongUse{{"--compare=", "--report=x.html"}, "--compare: must name"},
                      WrongUse{{"--compare=x,", "--report=x.html"}, "--compare: must name"},
                      WrongUse{{"--compare=x", "--report=x.html", "--steps=3"},
                               "--steps: has no effect with --compare"},
                      WrongUse{{"--compare=/nowhere", "--report=book.txt"}, "report: must be a page named NAME.html"},
                      WrongUse{{"--compare=/nowhere", "--report=x.html"}, "/nowhere"},
                      WrongUse{{"--prometheus_file="}, "--prometheus_file: must name a file"},
                      WrongUse{{"--prometheus_file=x.prom", "--verify_gradients"}, "has no effect"}));

INSTANTIATE_TEST_SUITE_P(
    Models, WrongUseTest,
    ::testing::Values(
        WrongUse{{"--model=gpt", "--width=64", "--vocabulary=5"}, "vocabulary_size: is 5, but the data need "},
        WrongUse{{"--vocabulary=500"}, "--vocabulary: has no effect without token files"},
        WrongUse{{"--init_from="}, "--init_from: must name a file"},
        WrongUse{{"--model=mlp", "--dropout=0.1"}, "--dropout: has no effect with --model=mlp"},
        WrongUse{{"--model=net.pt", "--label_smoothing=0.1"},
                 "--label_smoothing: has no effect with --model=net.pt but without --loss=cross_entropy"},
        WrongUse{{"--model=net.pt", "--loss=mse", "--label_smoothing=0.1"}, "--label_smoothing: has no effect"},
        WrongUse{{"--model=ddp_comm_hook_task", "--verify_gradients", "--init_from=x"},
                 "--init_from: has no effect with --model=ddp_comm_hook_task"},
        WrongUse{{"--evaluate=x.safetensors", "--init_from=x"}, "--init_from: has no effect with --evaluate"},
        WrongUse{{"--loss=mse"}, "--loss: has no effect with --model=char_gpt"},
        WrongUse{{"--evaluate=m.safetensors", "--loss=mse"}, "--loss: has no effect with --evaluate"}));

}  // namespace
}  // namespace narrowcast
