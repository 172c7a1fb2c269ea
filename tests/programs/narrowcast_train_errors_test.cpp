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

class NarrowcastTrainErrorsTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder;
};

// tests/trainer/train/flags/train_program_test.cpp has the other wrong uses.
TEST_F(NarrowcastTrainErrorsTest, WrongUseIsExitCodeTwo) {
  expect_one_line(train_alone({"--no_such_flag=1"}), 2, "no_such_flag");
  expect_one_line(train_alone({"--verify_gradients", "--steps=3"}), 2, "--steps: has no effect");
  expect_one_line(train_alone({"--hook=int8", "--levels=two"}), 2, "levels: two is impossible");
}

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
