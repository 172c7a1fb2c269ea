// The behaviour of narrowcast-train after an error: one clear line, the documented exit code, and no hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/programs/train_commands.h"
#include "tests/support/loopback_socket.h"
#include "tests/support/temporary_folder.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct WrongUse {
  Words flags;
  std::string text;
};

void PrintTo(const WrongUse& use, std::ostream* out) { *out << ::testing::PrintToString(use.flags); }

class NarrowcastTrainWrongUseTest : public ::testing::TestWithParam<WrongUse> {};

TEST_P(NarrowcastTrainWrongUseTest, IsOneLineAndExitCodeTwo) {
  expect_one_line(train_alone(GetParam().flags), 2, GetParam().text);
}

INSTANTIATE_TEST_SUITE_P(
    Values, NarrowcastTrainWrongUseTest,
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
        WrongUse{{"--hook=post_local_sgd"}, "--hook=post_local_sgd: needs --sync_every"},
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

class NarrowcastTrainErrorsTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder;
};

TEST_F(NarrowcastTrainErrorsTest, TextShorterThanTheContext) {
  const std::string path = folder.write("short.txt", "to be or not to be");
  expect_one_line(train_alone({"--data=" + path}), 2, "short.txt");
}

TEST_F(NarrowcastTrainErrorsTest, TextThatIsNotText) {
  expect_one_line(train_alone({"--data=" + folder.write("bad.txt", std::string(9000, '\xff'))}), 4, "bad.txt");
}

// Options that an attacker, or an accident, may put into a model file.
TEST_F(NarrowcastTrainErrorsTest, AModelFileWhoseOptionsAreDeepOrForTerminals) {
  const std::string model = folder / "m.safetensors";
  const auto write_options = [&](const std::string& options) {
    files::write_safetensors(
        model,
        {.tensors = {},
         .metadata = {{"format_version", "1"}, {"model", "char_gpt"}, {"vocabulary", "[]"}, {"options", options}}});
  };
  write_options(std::string(60'000, '['));
  const std::string deep = "m.safetensors: metadata 'options': is JSON nested more than 64 deep";
  expect_one_line(train_alone({"--evaluate=" + model}), 4, deep);
  const ProgramEnd quantized = run_to_end({kNarrowcastQuantize, model, folder / "q.safetensors"}, alone());
  EXPECT_EQ(quantized.exit_code, 4);
  EXPECT_THAT(quantized.errors, AllOf(StartsWith("narrowcast-quantize: "), HasSubstr(deep)));
  write_options(R"({"\u001b[2J\n)" + std::string(10'000'000, 'x') + R"(": 1})");
  const ProgramEnd end = train_alone({"--evaluate=" + model});
  expect_one_line(end, 4, R"(unknown option '\x1b[2J\nxxx)");
  EXPECT_LE(end.errors.size(), 5000u);
}

TEST_F(NarrowcastTrainErrorsTest, ThingsThatAreNoFilesAreNotWaitedFor) {
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);  // nobody writes to it: reading would block forever
  const std::string refusal = pipe + ": is not a regular file";
  expect_one_line(train_alone({"--flagfile=" + pipe}), 2, refusal);
  expect_one_line(train_alone({"--data=" + pipe}), 2, refusal);
  for (const char* const suffix : {".safetensors", ".pt"}) {
    std::filesystem::rename(folder / "pipe", folder / ("m" + std::string(suffix)));
    expect_one_line(train_alone({"--evaluate=" + folder / ("m" + std::string(suffix))}), 2, "is not a regular file");
    std::filesystem::rename(folder / ("m" + std::string(suffix)), folder / "pipe");
  }
  std::filesystem::create_directory(folder / "run");
  std::filesystem::rename(folder / "pipe", folder / "run/metrics.jsonl");
  const Words resume =
      small_gpt() + Words{"--output_dir=" + folder / "run", "--checkpoint_dir=" + folder / "c", "--resume"};
  const ProgramEnd end = train_alone(resume);
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, HasSubstr("metrics.jsonl: cannot be written: it is not a regular file"));
}

TEST_F(NarrowcastTrainErrorsTest, FilesOfAnEarlierTrainingAreKept) {
  folder.write("run/model.safetensors", "precious");
  const Words flags = small_gpt() + Words{"--output_dir=" + folder / "run"};
  expect_one_line(train_alone(flags), 2, "--overwrite replaces it");
  EXPECT_EQ(files::read_file(folder / "run/model.safetensors"), "precious");
  EXPECT_EQ(train_alone(flags + Words{"--overwrite"}).exit_code, 0);
  EXPECT_NE(files::read_file(folder / "run/model.safetensors"), "precious");
}

TEST_F(NarrowcastTrainErrorsTest, AFolderThatCannotBeMade) {
  const std::string file = folder.write("file", "");
  expect_one_line(train_alone(small_gpt() + Words{"--output_dir=" + file + "/run"}), 2, "output_dir");
  std::filesystem::create_symlink("nowhere", folder / "link");
  const std::string reason = folder / "link is a link to nowhere, which does not exist";
  for (const std::string flag : {"--output_dir=", "--checkpoint_dir=", "--tensorboard_dir="}) {
    expect_one_line(train_alone(small_gpt() + Words{flag + folder / "link"}), 2, reason);
  }
}

// File names may be any bytes; the metrics contain the name as messages print it.
TEST_F(NarrowcastTrainErrorsTest, DataWithANameThatIsNotUtf8) {
  const std::string book = folder.write("caf\xe9,1.txt", files::read_file(kBook));
  std::filesystem::copy_file(book, folder / "other.txt");
  const std::string escaped = folder / "caf\xe9\\,1.txt";
  const ProgramEnd end = train_on(
      2, small_gpt() + Words{"--data=" + escaped + "," + folder / "other.txt", "--output_dir=" + folder / "run",
                             "--checkpoint_dir=" + folder / "run\xff/checkpoints"});
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  const std::vector<nlohmann::json> lines = json_lines(folder / "run/metrics.jsonl");
  EXPECT_EQ(lines.front()["data"], folder / "caf\\xe9,1.txt and 1 more");
  EXPECT_EQ(lines.front()["checkpoint_dir"], folder / "run\\xff/checkpoints");
}

TEST_F(NarrowcastTrainErrorsTest, PathsAreSeparatedByCommas) {
  expect_one_line(train_alone(small_gpt() + Words{"--data=" + folder / "a,b"}), 2,
                  folder / "a: does not exist; a comma within a path is written \\,");
}

// A limit of the system is not a bug in the program.
class NarrowcastTrainLimitsTest : public NarrowcastTrainErrorsTest {
 protected:
  // A small training under `limit`, a shell command. Files that the test inherited open are closed, because they would
  // count.
  static ProgramEnd train_under(const std::string& limit, const Words& flags,
                                const std::map<std::string, std::string>& environment = alone()) {
    const std::string close_files = "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ";
    return run_to_end(
        Words{"sh", "-c", close_files + limit + "; exec \"$@\"", "sh", kNarrowcastTrain} + small_gpt() + flags,
        environment);
  }
};

TEST_F(NarrowcastTrainLimitsTest, TooManyOpenFiles) {
  folder.write("texts/of/one/author.txt", "A folder is open while those in it are read.");
  const ProgramEnd end = train_under("ulimit -n 4", {"--data=" + folder / "texts", "--output_dir=" + folder / "run"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, HasSubstr("Too many open files (RLIMIT_NOFILE: at most 4 files may be open)\n"));
}

// Each of these used to end in another way: libraries do not report, or notice, which resource they lacked.
TEST_F(NarrowcastTrainLimitsTest, TooFewOpenFilesForARankOfAJob) {
  for (const char* const files : {"7", "12", "16", "21"}) {
    expect_one_line(train_under(std::string("ulimit -n ") + files, {}, one_of_two(0, free_port())), 2,
                    std::string("RLIMIT_NOFILE: at most ") + files + " files may be open, ");
  }
  expect_one_line(train_under("ulimit -n 9", {}, one_of_two(1, free_port())), 2,
                  "more than now, but rank 1 of 2 needs about 12 more; raise the limit (ulimit -n)");
}

TEST_F(NarrowcastTrainLimitsTest, OnlyTheHardLimitOfOpenFilesCounts) {
  EXPECT_EQ(train_under("ulimit -Sn 4", {"--output_dir=" + folder / "run"}).exit_code, 0);
}

TEST_F(NarrowcastTrainLimitsTest, AFileThatMayNotGrow) {
  const ProgramEnd end = train_under("ulimit -f 1", {"--output_dir=" + folder / "run"});
  EXPECT_EQ(end.exit_code, 6);
  EXPECT_THAT(end.errors, HasSubstr(": cannot be written: File too large\n"));
}

TEST_F(NarrowcastTrainLimitsTest, TooLittleMemory) {
  // 3 GiB suffice for the program itself. Its largest parameter, of 3 * 16384 * 16384 numbers, does not fit.
  expect_one_line(
      train_under("ulimit -v 3145728", {"--width=16384"}), 2,
      "not enough memory: DefaultCPUAllocator: can't allocate memory: you tried to allocate 3221225472 bytes");
}

TEST_F(NarrowcastTrainErrorsTest, ALossThatIsNotFinite) {
  const Words flags = small_gpt() + Words{"--optimizer=sgd",
                                          "--learning_rate=1e30",
                                          "--log_every=2",
                                          "--clip_grad_norm=0",
                                          "--schedule=constant",
                                          "--overwrite",
                                          "--output_dir=" + folder / "run"};
  const ProgramEnd end = train_alone(flags + Words{"--noskip_nonfinite_steps"});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.errors, HasSubstr("the loss is not finite by step 2: lower --learning_rate"));
  // The first step ruins the parameters, and all later steps are skipped.
  const ProgramEnd skipping = train_on(2, flags + Words{"--max_skipped_steps=3"});
  EXPECT_EQ(skipping.exit_code, 1);
  EXPECT_THAT(skipping.errors,
              HasSubstr("3 steps in a row were skipped by step 4 (--max_skipped_steps=3): the gradients "
                        "of ranks 0, 1 were not finite"));
  for (const nlohmann::json& line : json_lines(folder / "run/metrics.jsonl")) {
    if (line["event"] == "step") {
      EXPECT_EQ(line.value("nonfinite_ranks", nlohmann::json()), (nlohmann::json{0, 1}));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "run/model.safetensors"));
}

}  // namespace
}  // namespace narrowcast::testing
