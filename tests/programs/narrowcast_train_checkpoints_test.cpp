// Trainings that are killed and resume: real processes, sockets and text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <thread>

#include "tests/programs/train_commands.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class NarrowcastTrainCheckpointsTest : public ::testing::Test {
 protected:
  // Rank `rank` of two, without a launcher that would end the other one first.
  std::unique_ptr<RunningProgram> start(int rank, int64_t port, const Words& flags) const {
    return std::make_unique<RunningProgram>(Words{kNarrowcastTrain} + flags, one_of_two(rank, port));
  }
  // A training with the flags `exchange`.
  Words flags_of(const std::string& name, int steps, const Words& exchange) const {
    return Words{"--model=char_gpt",
                 "--layers=1",
                 "--heads=2",
                 "--width=32",
                 "--context=16",
                 "--batch_size=12",
                 "--eval_batches=1",
                 "--sample_length=0",
                 "--bucket_cap_mb=0.02",
                 "--stochastic_rounding",
                 "--steps=" + std::to_string(steps),
                 "--output_dir=" + folder / (name + "/run"),
                 "--checkpoint_dir=" + folder / (name + "/checkpoints"),
                 "--checkpoint_every=2",
                 "--resume"} +
           exchange;
  }
  // Covers the whole state of the exchange: residuals of both kinds, and the counter of random rounding. With one node
  // nothing would be rounded.
  Words flags(const std::string& name, int steps = 40) const {
    return flags_of(name, steps, {"--hook=int4", "--node_size=1", "--error_feedback"});
  }
  // Replicas differ between most steps. One of four checkpoints in a round is written during an exchange.
  Words local_flags(const std::string& name) const {
    return flags_of(name, 36,
                    {"--sync_every=8", "--outer_warmup=4", "--outer_optimizer=nesterov", "--fragments=2",
                     "--overlap_steps=3", "--outer_mix=0.5", "--outer_format=int4_b32", "--node_size=1"});
  }
  std::string checkpoint(int step) const {
    const std::string digits = std::to_string(step);
    return folder / ("killed/checkpoints/step-" + std::string(8 - digits.size(), '0') + digits);
  }
  std::string model(const std::string& name) const {
    return files::read_file(folder / (name + "/run/model.safetensors"));
  }
  // The model of an undisturbed training with flags(), which all tests of this process share.
  const std::string& undisturbed_model() const {
    static const std::string bytes = [&] {
      EXPECT_EQ(train_on(2, flags("whole")).exit_code, 0);
      return model("whole");
    }();
    return bytes;
  }
  // Kills rank 1 of a training once the checkpoint of that step exists.
  void kill_one_of_two(const Words& training, int step) const {
    const int64_t port = free_port();
    const auto zero = start(0, port, training);
    const auto one = start(1, port, training);
    wait_until([&] { return fs::exists(checkpoint(step)); });
    one->send(SIGKILL);
    EXPECT_EQ(one->wait().signal, SIGKILL);
    const ProgramEnd end = zero->wait();
    EXPECT_EQ(end.exit_code, 3) << end.errors;
    EXPECT_FALSE(fs::exists(folder / "killed/run/model.safetensors")) << "it was killed on its way";
  }
  const TemporaryFolder folder;
};

TEST_F(NarrowcastTrainCheckpointsTest, AKilledRankCostsNoBitsOfLocalSteps) {
  ASSERT_EQ(train_on(2, local_flags("whole")).exit_code, 0);
  kill_one_of_two(local_flags("killed"), 10);
  const ProgramEnd end = train_on(2, local_flags("killed"));
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("resumes from " + folder / "killed/checkpoints/step-"), HasSubstr("of 36"),
                                Not(HasSubstr("warning"))));
  EXPECT_EQ(model("killed"), model("whole"));
  const auto last_of = [&](const std::string& name) {
    return json_lines(folder / (name + "/run/metrics.jsonl")).back();
  };
  for (const char* const key : {"training_loss", "validation_loss", "outer_payload_bytes_sent", "outer_exchanges"}) {
    EXPECT_EQ(last_of("killed")[key], last_of("whole")[key]) << key;
  }
}

// The second job would remove the checkpoint that the first one is writing, and resume from the first one's past.
TEST_F(NarrowcastTrainCheckpointsTest, ASecondJobLeavesTheFolderOfTheFirstAlone) {
  const Words training = flags("killed", 1'000'000);
  RunningProgram first(Words{kNarrowcastTrain} + training, alone());
  wait_until([&] { return fs::exists(checkpoint(2)); });
  const ProgramEnd second = train_alone(training);
  EXPECT_EQ(second.exit_code, 2) << second.errors;
  EXPECT_THAT(second.errors, HasSubstr("checkpoint_dir " + folder / "killed/checkpoints" + ": is in use by process " +
                                       std::to_string(first.pid()) + " on "));
  first.send(SIGKILL);
  EXPECT_EQ(first.wait().signal, SIGKILL);
  RunningProgram third(Words{kNarrowcastTrain} + training, alone());
  third.wait_for_errors("resumes from " + folder / "killed/checkpoints/step-");
  third.send(SIGKILL);
  EXPECT_EQ(third.wait().signal, SIGKILL);
}

// Three ranks resume a training of two in the middle of a round.
TEST_F(NarrowcastTrainCheckpointsTest, AnotherWorldGoesOnWithLocalStepsFromTheOuterParameters) {
  ASSERT_EQ(train_on(2, local_flags("killed")).exit_code, 0);
  fs::remove_all(checkpoint(36));
  fs::remove(folder / "killed/run/model.safetensors");
  const ProgramEnd end = train_on(3, local_flags("killed"));
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("resumes from " + checkpoint(34)), HasSubstr("ranks (3, was 2)")));
  EXPECT_THAT(end.output, HasSubstr("identical on all ranks"));
}

TEST_F(NarrowcastTrainCheckpointsTest, AKilledRankCostsNoBits) {
  kill_one_of_two(flags("killed"), 6);
  const ProgramEnd end = train_on(2, flags("killed"));
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("resumes from " + folder / "killed/checkpoints/step-"), HasSubstr("of 40"),
                                Not(HasSubstr("warning"))));
  EXPECT_EQ(model("killed"), undisturbed_model());
  // Every report exists once, as in an uninterrupted training.
  std::vector<int> steps;
  for (const auto& line : json_lines(folder / "killed/run/metrics.jsonl")) {
    if (line["event"] == "step") {
      steps.push_back(line["step"]);
    }
  }
  EXPECT_THAT(steps, ::testing::ElementsAre(10, 20, 30, 40));
}

// The command line is the same at the first start and after each restart.
TEST_F(NarrowcastTrainCheckpointsTest, TheLauncherRestartsAKilledTraining) {
  std::string script = "echo worker $$; exec";
  for (const std::string& word : Words{kNarrowcastTrain} + flags("killed")) {
    script += " '" + word + "'";
  }
  RunningProgram job({kNarrowcastRun, "--nproc_per_node=2", "--max_restarts=1", "sh", "-c", script}, alone());
  job.wait_for_output("worker ", 2);
  const std::string output = job.output();
  wait_until([&] { return fs::exists(checkpoint(6)); });
  kill(static_cast<pid_t>(std::stol(output.substr(output.rfind("worker ") + 7))), SIGKILL);
  const ProgramEnd end = job.wait();
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("starts a new training"),
                                HasSubstr("resumes from " + folder / "killed/checkpoints/step-")));
  EXPECT_EQ(model("killed"), undisturbed_model());
}

// Without --resume: a restart by the launcher resumes from the checkpoints of the same run. Before the first checkpoint
// it replaces the files of the former start.
TEST_F(NarrowcastTrainCheckpointsTest, ARestartNeedsNoFlagToResume) {
  const auto restarted = [&](const std::string& killed_when) {
    std::string script =
        "echo worker $$; test $TORCHELASTIC_RESTART_COUNT$RANK = 01 && (" + killed_when + "; kill -KILL $$) & exec";
    for (const std::string& word : Words{kNarrowcastTrain} + flags("killed")) {
      script += word == "--resume" ? "" : " '" + word + "'";
    }
    return run_to_end({kNarrowcastRun, "--nproc_per_node=2", "--max_restarts=1", "sh", "-c", script}, alone());
  };
  const ProgramEnd late = restarted("while ! test -e " + checkpoint(6) + "; do sleep 0.01; done");
  EXPECT_EQ(late.exit_code, 0) << late.errors;
  EXPECT_THAT(late.errors, HasSubstr("resumes from " + folder / "killed/checkpoints/step-"));
  EXPECT_EQ(model("killed"), undisturbed_model());
  EXPECT_EQ(restarted("sleep 60").exit_code, 2) << "another run's files are in the way";
  fs::remove_all(folder / "killed");
  const ProgramEnd early =
      restarted("while ! test -s " + folder / "killed/run/metrics.jsonl" + "; do sleep 0.01; done");
  EXPECT_EQ(early.exit_code, 0) << early.errors;
  EXPECT_EQ(model("killed"), undisturbed_model());
}

// Stops rank 0 while an unfinished checkpoint after that of step 6 exists. Returns whether it found one.
bool stop_while_writing(const RunningProgram& program, const fs::path& checkpoints) {
  const auto unfinished = [&] {
    for (const auto& entry : fs::directory_iterator(checkpoints)) {
      if (entry.path().extension() == ".unfinished") {
        return true;
      }
    }
    return false;
  };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!unfinished() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();  // A pause could miss it: writing takes about a millisecond.
  }
  program.send(SIGSTOP);
  wait_until([&] {  // Waits until it has stopped: its state is the first letter after its name.
    std::ifstream file("/proc/" + std::to_string(program.pid()) + "/stat");
    std::string stat;
    return std::getline(file, stat) && stat.compare(stat.rfind(')'), 3, ") T") == 0;
  });
  if (unfinished()) {
    return true;
  }
  program.send(SIGCONT);
  return false;
}

TEST_F(NarrowcastTrainCheckpointsTest, AKillWhileWritingCostsNoCheckpoint) {
  const int64_t port = free_port();
  {
    const auto zero = start(0, port, flags("killed"));
    const auto one = start(1, port, flags("killed"));
    wait_until([&] { return fs::exists(checkpoint(6)); });
    wait_until([&] { return stop_while_writing(*zero, folder / "killed/checkpoints"); });
    zero->send(SIGKILL);
    EXPECT_EQ(zero->wait().signal, SIGKILL);
    EXPECT_EQ(one->wait().exit_code, 3);
  }
  const ProgramEnd end = train_on(2, flags("killed"));
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("resumes from "), Not(HasSubstr("warning"))));
  EXPECT_EQ(model("killed"), undisturbed_model());
  // The two newest checkpoints, and no leftovers.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "killed/checkpoints"), fs::directory_iterator()), 2);
}

TEST_F(NarrowcastTrainCheckpointsTest, ADamagedOneIsSkippedByAllRanks) {
  ASSERT_EQ(train_on(2, flags("killed", 8)).exit_code, 0);
  const std::string whole = model("killed");
  const std::string file = checkpoint(8) + "/rank-00001.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  const ProgramEnd end = train_on(2, flags("killed", 8));
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("warning: skips the checkpoint of step 8: rank 1: " + file + ": has "),
                                HasSubstr("resumes from " + checkpoint(6))));
  EXPECT_EQ(count_of("warning", end.errors), 1);
  EXPECT_EQ(model("killed"), whole);
}

TEST_F(NarrowcastTrainCheckpointsTest, AnotherWorldGoesOnAndSaysSoAndAnotherTrainingIsRefused) {
  const Words words = flags_of("killed", 8, {"--hook=int4", "--error_feedback"});
  ASSERT_EQ(train_on(2, words).exit_code, 0);
  fs::remove_all(checkpoint(8));
  const ProgramEnd end = train_on(3, words);
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, HasSubstr("warning: results will not be bit-identical to an uninterrupted training: "
                                    "node_of_rank ([0,0,0], was [0,0]), nodes (1 x 3, was 1 x 2), ranks (3, was 2)"));
  EXPECT_EQ(count_of("warning", end.errors), 1);
  const ProgramEnd other = train_alone(words + Words{"--learning_rate=0.5"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.errors, HasSubstr("learning_rate: is 0.5, but 0.005 in the checkpoint " + checkpoint(8)));
}

// Ranks, and how the optimizer is sharded.
struct FullDisk {
  std::string name;
  int ranks;
  Words flags;
};

void PrintTo(const FullDisk& value, std::ostream* out) { *out << value.name; }

class FullDiskTest : public NarrowcastTrainCheckpointsTest, public ::testing::WithParamInterface<FullDisk> {};

// A separate file system that is full after some checkpoints. The training resumes from the last of them, with the bits
// of one that had enough space.
TEST_P(FullDiskTest, CostsNoEarlierCheckpoint) {
  const Words exchange = Words{"--hook=int8", "--node_size=1", "--link_gbit=1", "--link_us=100"} +
                         Words{"--bucket_cap_mb=25", "--nostochastic_rounding", "--keep_checkpoints=0"};
  const Words training = flags_of("killed", 8, exchange + GetParam().flags);
  const std::string disk = folder / "killed/checkpoints";
  fs::create_directories(disk);
  std::string command;
  for (const std::string& word :
       Words{kNarrowcastRun, "--nproc_per_node=" + std::to_string(GetParam().ranks), kNarrowcastTrain} + training) {
    command += "'" + word + "' ";
  }
  const bool mounts = run_to_end({"unshare", "-m", "true"}).exit_code == 0;
  if (!mounts) {
    GTEST_SKIP() << "no rights to mount a small disk; CheckpointWriterTest limits the size of files instead";
  }
  // A checkpoint takes some 250 kB. The disk's content is copied before it disappears with its name space.
  const ProgramEnd end = run_to_end({"unshare", "-m", "sh", "-c",
                                     "mount -t tmpfs -o size=700k none '" + disk + "' && { " + command +
                                         "; code=$?; cp -r '" + disk + "' '" + folder / "copy" + "'; exit $code; }"},
                                    alone());
  EXPECT_EQ(end.exit_code, 6) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("narrowcast-train: the checkpoint of step "),
                                HasSubstr("No space left on device; earlier checkpoints are kept")));
  fs::copy(folder / "copy", disk, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  ASSERT_TRUE(fs::exists(checkpoint(2) + "/manifest.json"));
  for (const auto& entry : fs::directory_iterator(disk)) {
    EXPECT_NE(entry.path().extension(), ".unfinished");
  }
  const ProgramEnd again = train_on(GetParam().ranks, training);
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_THAT(again.errors, AllOf(HasSubstr("resumes from"), Not(HasSubstr("warning"))));
  ASSERT_EQ(train_on(GetParam().ranks, flags_of("whole", 8, exchange + GetParam().flags)).exit_code, 0);
  EXPECT_EQ(model("killed"), model("whole"));
}

INSTANTIATE_TEST_SUITE_P(Shards, FullDiskTest,
                         ::testing::Values(FullDisk{"alone", 1, {}},
                                           FullDisk{"node", 2, {"--shard_optimizer=node", "--node_size=2"}},
                                           FullDisk{"all", 2, {"--shard_optimizer=all"}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace narrowcast::testing
