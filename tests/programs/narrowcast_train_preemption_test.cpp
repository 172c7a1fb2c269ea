// Trainings that a signal ends, with a checkpoint from which they resume: real processes and signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/programs/train_commands.h"
#include "tests/support/temporary_folder.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"

namespace narrowcast::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class NarrowcastTrainPreemptionTest : public ::testing::Test {
 protected:
  // A training that writes no periodic checkpoint. Its learning rate does not depend on the number of steps.
  Words flags(const std::string& name, const Words& more = {}) const {
    return small_gpt() + Words{"--schedule=constant",        "--warmup_steps=0",
                               "--eval_batches=0",           "--log_every=1",
                               "--sample_length=0",          "--steps=1000000",
                               "--checkpoint_every=1000000", "--resume",
                               "--bucket_cap_mb=1",          "--checkpoint_dir=" + checkpoints(name)} +
           more;
  }
  std::string checkpoints(const std::string& name) const { return folder / (name + "/checkpoints"); }
  // The step of the only checkpoint; -1 if there is not exactly one.
  int64_t saved_step(const std::string& name) const {
    const auto steps = checkpoint::checkpoint_steps(checkpoints(name));
    return steps.size() == 1 ? steps[0] : -1;
  }
  // Ranks of a job without a launcher, which would end all of them.
  static std::vector<std::unique_ptr<RunningProgram>> start(int ranks, const Words& training) {
    const int64_t port = free_port();
    std::vector<std::unique_ptr<RunningProgram>> programs;
    for (int rank = 0; rank < ranks; ++rank) {
      programs.push_back(
          std::make_unique<RunningProgram>(Words{kNarrowcastTrain} + training, one_of(ranks, rank, port)));
    }
    programs[0]->wait_for_errors("step");
    return programs;
  }
  // Resumes for 20 more steps on `ranks` ranks, and compares with an uninterrupted training of the same number of
  // steps.
  void expect_bits_of_an_uninterrupted_training(int ranks, const Words& more) const {
    const int64_t steps = saved_step("stopped") + 20;
    const auto whole = [&](const std::string& name) {
      return flags(name, more) + Words{"--steps=" + std::to_string(steps), "--output_dir=" + folder / (name + "/run")};
    };
    const ProgramEnd resumed = train_on(ranks, whole("stopped"));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
    EXPECT_THAT(resumed.errors, AllOf(HasSubstr("resumes from"), Not(HasSubstr("warning"))));
    EXPECT_EQ(train_on(ranks, whole("whole")).exit_code, 0);
    const auto model = [&](const std::string& name) {
      return files::read_file(folder / (name + "/run/model.safetensors"));
    };
    EXPECT_EQ(model("stopped"), model("whole"));
  }
  const TemporaryFolder folder;
};

struct Preempted {
  std::string name;
  int signal;
  Words flags;  // of the training
};

void PrintTo(const Preempted& value, std::ostream* out) { *out << value.name; }

class PreemptedTrainingTest : public NarrowcastTrainPreemptionTest, public ::testing::WithParamInterface<Preempted> {};

// Under the launcher, which forwards the signal to all ranks.
TEST_P(PreemptedTrainingTest, EndsWithACheckpointAndResumesWithTheSameBits) {
  const auto& [name, signal, more] = GetParam();
  RunningProgram job(
      Words{kNarrowcastRun, "--nproc_per_node=2", "--signals_to_handle=SIGTERM,SIGUSR1", kNarrowcastTrain} +
          flags("stopped", more),
      alone());
  job.wait_for_errors("step");
  job.send(signal);
  const ProgramEnd end = job.wait();
  EXPECT_EQ(end.exit_code, 128 + signal) << end.errors;
  const int64_t step = saved_step("stopped");
  ASSERT_GT(step, 0) << end.errors;
  const std::string signal_text = signal == SIGTERM ? "SIGTERM" : "SIGUSR1";
  EXPECT_THAT(end.errors,
              AllOf(HasSubstr(signal_text + ": stopped after step " + std::to_string(step) + " of 1000000; "),
                    HasSubstr("--resume continues from " + checkpoints("stopped") + "/step-"),
                    HasSubstr("narrowcast-run: stopped by " + signal_text)));
  expect_bits_of_an_uninterrupted_training(2, more);
}

INSTANTIATE_TEST_SUITE_P(
    Exchanges, PreemptedTrainingTest,
    ::testing::Values(Preempted{"int4", SIGTERM, {"--hook=int4", "--node_size=1", "--error_feedback"}},
                      Preempted{"accumulation", SIGUSR1, {"--hook=none", "--accumulation_steps=2"}},
                      Preempted{"static_graph", SIGTERM, {"--hook=int8", "--node_size=1", "--static_graph"}}),
    [](const auto& info) { return info.param.name; });

// One of several machines is preempted, or a user kills the wrong process.
TEST_F(NarrowcastTrainPreemptionTest, ARankThatAloneIsSentASignalStopsAllRanksAfterTheSameStep) {
  const auto ranks = start(3, flags("stopped", {"--hook=int8", "--node_size=1"}));
  ranks[1]->send(SIGTERM);
  for (const auto& rank : ranks) {
    const ProgramEnd end = rank->wait();
    EXPECT_EQ(end.exit_code, 128 + SIGTERM) << end.errors;
  }
  const int64_t step = saved_step("stopped");
  EXPECT_GT(step, 0);
  EXPECT_THAT(ranks[0]->errors(), HasSubstr("SIGTERM: stopped after step " + std::to_string(step)));
  EXPECT_THAT(ranks[1]->errors(), Not(HasSubstr("SIGTERM"))) << "one line, of rank 0";
}

// Ranks take local steps between exchanges, and an exchange may be in progress.
TEST_F(NarrowcastTrainPreemptionTest, RanksThatTakeLocalStepsStopAfterTheSameStep) {
  const Words local = {"--sync_every=8",  "--outer_optimizer=nesterov", "--fragments=2", "--overlap_steps=3",
                       "--outer_mix=0.5", "--outer_format=int4_b32",    "--node_size=1", "--outer_warmup=0"};
  const auto ranks = start(2, flags("stopped", local));
  ranks[0]->send(SIGUSR1);
  for (const auto& rank : ranks) {
    const ProgramEnd end = rank->wait();
    EXPECT_EQ(end.exit_code, 128 + SIGUSR1) << end.errors;
  }
  const int64_t step = saved_step("stopped");
  ASSERT_GT(step, 0);
  const std::string steps = "--steps=" + std::to_string((step / 8 + 2) * 8);
  const auto run = [&](const std::string& name) {
    const ProgramEnd end = train_on(2, flags(name, local) + Words{steps, "--output_dir=" + folder / (name + "/run")});
    EXPECT_EQ(end.exit_code, 0) << end.errors;
    return files::read_file(folder / (name + "/run/model.safetensors"));
  };
  EXPECT_EQ(run("stopped"), run("whole"));
}

TEST_F(NarrowcastTrainPreemptionTest, AProcessAloneStops) {
  RunningProgram training(Words{kNarrowcastTrain} + flags("stopped"), alone());
  training.wait_for_errors("step");
  training.send(SIGTERM);
  EXPECT_EQ(training.wait().exit_code, 128 + SIGTERM);
  EXPECT_GT(saved_step("stopped"), 0);
}

// Rank 1 no longer takes part, so that rank 0 cannot write: it only records the first signal.
TEST_F(NarrowcastTrainPreemptionTest, ASecondSignalEndsARankAtOnce) {
  const auto ranks = start(2, flags("stopped", {"--hook=int8", "--node_size=1", "--silence_seconds=0"}));
  ranks[1]->send(SIGSTOP);
  // Signals within half a second count as one, so the second one is sent until it counts.
  const auto is_gone = [&] {
    ranks[0]->send(SIGTERM);
    return !fs::exists("/proc/" + std::to_string(ranks[0]->pid()) + "/exe");
  };
  wait_until(is_gone);
  EXPECT_EQ(ranks[0]->wait().exit_code, 128 + SIGTERM);
  EXPECT_EQ(saved_step("stopped"), -1);
  ranks[1]->send(SIGKILL);
  EXPECT_EQ(ranks[1]->wait().signal, SIGKILL);
}

// Signals keep their default actions.
TEST_F(NarrowcastTrainPreemptionTest, SignalsEndATrainingWithoutCheckpointsOrWithoutThatFlag) {
  for (const Words& training :
       {small_gpt() + Words{"--steps=1000000", "--log_every=1"}, flags("none", {"--preemption_signals="}),
        flags("other", {"--preemption_signals=SIGUSR2"})}) {
    RunningProgram program(Words{kNarrowcastTrain} + training, alone());
    program.wait_for_errors("step");
    program.send(SIGTERM);
    EXPECT_EQ(program.wait().signal, SIGTERM);
  }
  EXPECT_EQ(saved_step("none"), -1);
  EXPECT_EQ(saved_step("other"), -1);
}

TEST_F(NarrowcastTrainPreemptionTest, RefusesSignalsThatItCannotCatchAndTheFlagWithoutAFolder) {
  const auto refusal = [](const Words& training) {
    const ProgramEnd end = train_alone(training);
    EXPECT_EQ(end.exit_code, 2);
    return end.errors;
  };
  EXPECT_EQ(refusal(flags("x", {"--preemption_signals=SIGTERM,SIGKILL"})),
            "narrowcast-train: preemption_signals=SIGTERM,SIGKILL: SIGKILL cannot be handled by a training\n");
  EXPECT_EQ(refusal(flags("x", {"--preemption_signals=TERM"})),
            "narrowcast-train: preemption_signals=TERM: 'TERM' is not a signal; example: SIGTERM,SIGINT\n");
  EXPECT_EQ(refusal(small_gpt() + Words{"--preemption_signals=SIGTERM"}),
            "narrowcast-train: --preemption_signals: has no effect without --checkpoint_dir\n");
}

// Otherwise each rank would agree to something else.
TEST_F(NarrowcastTrainPreemptionTest, RanksCompareTheFlag) {
  const int64_t port = free_port();
  RunningProgram zero(Words{kNarrowcastTrain} + flags("x"), one_of_two(0, port));
  RunningProgram one(Words{kNarrowcastTrain} + flags("x", {"--preemption_signals=SIGUSR1"}), one_of_two(1, port));
  for (RunningProgram* const rank : {&zero, &one}) {
    const ProgramEnd end = rank->wait();
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_THAT(end.errors, HasSubstr("preemption_signals differs between ranks"));
  }
}

}  // namespace
}  // namespace narrowcast::testing
