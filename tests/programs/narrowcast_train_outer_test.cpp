// Local steps and outer exchanges: real processes, sockets and text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/programs/train_commands.h"
#include "tests/support/temporary_folder.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class NarrowcastTrainOuterTest : public ::testing::Test {
 protected:
  Words flags(const std::string& name, const Words& more) const {
    return small_gpt() +
           Words{"--steps=60", "--bucket_cap_mb=1", "--link_gbit=1", "--link_us=100", "--output_dir=" + folder / name} +
           more;
  }
  Words without_link_flags(const std::string& name) const {
    return small_gpt() + Words{"--bucket_cap_mb=1", "--output_dir=" + folder / name};
  }
  std::vector<nlohmann::json> metrics(const std::string& name) const {
    return json_lines(folder / (name + "/metrics.jsonl"));
  }
  std::string oldest_checkpoint() const {
    const std::string checkpoints = folder / "checkpoints";
    return checkpoint::checkpoint_path(checkpoints, checkpoint::checkpoint_steps(checkpoints).back());
  }
  const TemporaryFolder folder;
};

// 60 steps with 12 steps of warm-up leave 6 rounds of 8 steps, with two fragments each.
TEST_F(NarrowcastTrainOuterTest, SendsWhatThePlanSaysAndSavesTheOuterParameters) {
  const ProgramEnd end =
      train_on(2, flags("run", {"--sync_every=8", "--outer_warmup=12", "--outer_optimizer=nesterov", "--fragments=2",
                                "--overlap_steps=2", "--outer_format=int4_b32", "--node_size=1", "--eval_every=20"}));
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, AllOf(HasSubstr("outer exchanges  12 ("), HasSubstr("identical on all ranks")));
  const auto lines = metrics("run");
  const nlohmann::json& plan = lines.front();
  EXPECT_EQ(plan["hook"], "post_local_sgd");
  EXPECT_EQ(plan["local_group"], "none");
  EXPECT_EQ(plan["overlap_steps"], 2);
  EXPECT_EQ(plan["outer_learning_rate"], 0.7);
  const nlohmann::json& last = lines.back();
  const int64_t outer_bytes = 12 * plan["payload_bytes_per_exchange_and_rank"].get<int64_t>();
  EXPECT_EQ(last["outer_payload_bytes_sent"], outer_bytes);
  EXPECT_EQ(last["payload_bytes_sent"].get<int64_t>() - outer_bytes, 12 * 4 * plan["parameters"].get<int64_t>())
      << "the warm-up's gradients";
  EXPECT_EQ(last["replicas"], "equal");
  EXPECT_EQ(last["lost_exchanges"], 0);
  std::vector<std::string> replicas;
  std::vector<int64_t> joined;
  std::vector<int64_t> staleness;
  for (const auto& line : lines) {
    if (line["event"] != "step") continue;
    replicas.push_back(line["replicas"]);
    joined.push_back(line["joined_exchanges"]);
    staleness.push_back(line.value("staleness", int64_t{-1}));
    EXPECT_EQ(line.contains("compression"), line["step"] == 10) << "of gradients, which the warm-up alone sends";
  }
  // At steps 10, 20, ..., 60, which are 8, 18, 28, 38 and 48 after the warm-up: issued every 4 steps, joined 2 later.
  EXPECT_THAT(joined, ::testing::ElementsAre(0, 1, 4, 6, 9, 11));
  EXPECT_THAT(staleness, ::testing::ElementsAre(-1, 4, 2, 4, 2, 4));
  EXPECT_THAT(replicas, ::testing::ElementsAre("equal", "differ", "differ", "differ", "differ", "differ"));
  // The last evaluation used the saved parameters.
  const ProgramEnd look =
      train_alone({"--evaluate=" + folder / "run/model.safetensors", "--eval_batches=1", "--batch_size=12"});
  ASSERT_EQ(look.exit_code, 0) << look.errors;
  const std::string loss = end.output.substr(end.output.find("validation loss  ") + 17, 6);
  EXPECT_THAT(look.output, HasSubstr(loss));
}

// Two nodes of two ranks: gradients are averaged within a node in each step, parameters between nodes.
TEST_F(NarrowcastTrainOuterTest, ExchangesInANodeInEachStepAndBetweenNodesInRounds) {
  const ProgramEnd end =
      train_on(4, flags("run", {"--sync_every=10", "--node_size=2", "--outer_format=int8_b128", "--log_every=5"}));
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  const auto lines = metrics("run");
  const nlohmann::json& plan = lines.front();
  EXPECT_EQ(plan["nodes"], "2 x 2");
  EXPECT_EQ(plan["local_group"], 2);
  EXPECT_EQ(plan["exchange_levels"], 2);
  const nlohmann::json& last = lines.back();
  EXPECT_EQ(last["outer_exchanges"], 6);
  // The two ranks of a node share the blocks of 128 numbers, 130 bytes each, in grains of 8 blocks; rank 1 has the
  // remainder. The plan gives the maximum over the ranks, the metrics give rank 0's bytes.
  const int64_t blocks = (plan["parameters"].get<int64_t>() + 127) / 128;
  const int64_t most = plan["payload_bytes_per_exchange_and_rank"].get<int64_t>();
  EXPECT_EQ(last["outer_payload_bytes_sent"], 6 * (blocks * 130 - most));
  EXPECT_EQ(last["payload_bytes_sent"].get<int64_t>() - last["outer_payload_bytes_sent"].get<int64_t>(),
            60 * 4 * plan["parameters"].get<int64_t>())
      << "of a ring of two";
  for (const auto& line : lines) {
    if (line["event"] == "step") {
      EXPECT_EQ(line["replicas"], line["step"].get<int>() % 10 == 0 ? "equal" : "differ");
      EXPECT_EQ(line.value("compression", 0.0), 1) << "of gradients in a node, not of what the nodes exchange";
    }
  }
}

// Rank 2 stands still most of the time. The others take more steps, and no rank waits for it for a whole round.
TEST_F(NarrowcastTrainOuterTest, RanksOfDifferentSpeedsTakeWhatTheyCanInATime) {
  const int64_t port = free_port();
  std::vector<std::unique_ptr<RunningProgram>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::make_unique<RunningProgram>(
        Words{kNarrowcastTrain} +
            flags("run", {"--sync_seconds=0.2", "--outer_warmup=10", "--steps=2000", "--outer_optimizer=nesterov",
                          "--outer_format=int8_b128", "--node_size=1", "--log_every=40", "--eval_every=100",
                          "--checkpoint_dir=" + folder / "checkpoints"}),
        one_of(3, rank, port)));
  }
  ranks[0]->wait_for_errors("link: ");
  const std::string path = folder / "run/metrics.jsonl";
  const auto ends = [&] {
    return std::filesystem::exists(path) && files::read_file(path).find(R"("event":"end")") != std::string::npos;
  };
  wait_until([&] {
    ranks[2]->send(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    ranks[2]->send(SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return ends();
  });
  for (int rank = 0; rank < 3; ++rank) {
    const ProgramEnd end = ranks[static_cast<size_t>(rank)]->wait();
    ASSERT_EQ(end.exit_code, 0) << end.errors;
    EXPECT_THAT(end.output, HasSubstr(rank == 0 ? "identical on all ranks" : ""));
  }
  const auto lines = metrics("run");
  EXPECT_EQ(lines.front()["sync_seconds"], 0.2);
  EXPECT_THAT(lines.front()["payload_bytes_per_step_and_rank"], HasSubstr("unknown"));
  std::vector<double> losses;
  int64_t unequal = 0;
  for (const auto& line : lines) {
    if (line["event"] != "step" || !line.contains("most_round_steps")) continue;
    losses.push_back(line["loss"]);
    unequal += line["fewest_round_steps"].get<int64_t>() < line["most_round_steps"].get<int64_t>() ? 1 : 0;
    EXPECT_EQ(line["replicas"], "equal");
  }
  ASSERT_GE(losses.size(), 2);
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_GE(unequal, 1);
  EXPECT_EQ(lines.back()["event"], "end");
  const ProgramEnd end =
      train_on(2, flags("resumed", {"--sync_seconds=0.2", "--outer_warmup=10", "--steps=2000",
                                    "--outer_optimizer=nesterov", "--outer_format=int8_b128", "--node_size=1",
                                    "--log_every=40", "--eval_every=100", "--resume_from=" + oldest_checkpoint()}));
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_LT(metrics("resumed").back()["validation_loss"].get<double>(), losses.front());
}

// Rank 2 stands still until the others have ended ten rounds without it, and then takes part again.
TEST_F(NarrowcastTrainOuterTest, ARankThatStandsStillDoesNotStopTheOthers) {
  const int64_t port = free_port();
  const Words quorum = {"--sync_every=4",
                        "--outer_warmup=8",
                        "--outer_quorum=2",
                        "--outer_grace_seconds=0.1",
                        "--outer_optimizer=nesterov",
                        "--outer_format=int8_b128",
                        "--node_size=1",
                        "--log_every=8",
                        "--batch_size=12"};
  std::vector<std::unique_ptr<RunningProgram>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::make_unique<RunningProgram>(
        Words{kNarrowcastTrain} + without_link_flags("run") + quorum +
            Words{"--steps=2408", "--checkpoint_every=1200", "--checkpoint_dir=" + folder / "checkpoints"},
        one_of(3, rank, port)));
  }
  const auto exchanges = [&] {
    int64_t count = 0;
    for (const auto& line : metrics("run")) count = std::max(count, line.value("outer_exchanges", int64_t{0}));
    return count;
  };
  wait_until([&] { return std::filesystem::exists(folder / "run/metrics.jsonl") && exchanges() >= 4; });
  ranks[2]->send(SIGSTOP);
  const int64_t before = exchanges();
  wait_until([&] { return exchanges() >= before + 10; });
  ranks[2]->send(SIGCONT);
  for (int rank = 0; rank < 3; ++rank) {
    const ProgramEnd end = ranks[static_cast<size_t>(rank)]->wait();
    ASSERT_EQ(end.exit_code, 0) << end.errors;
    EXPECT_THAT(end.output, HasSubstr(rank == 0 ? "identical on all ranks" : ""));
  }
  const auto lines = metrics("run");
  EXPECT_EQ(lines.front()["outer_quorum"], 2);
  std::vector<double> losses;
  int64_t step = 0;
  for (const auto& line : lines) {
    if (line["event"] != "step") continue;
    EXPECT_EQ(line["step"], step += 8);
    losses.push_back(line["loss"]);
  }
  EXPECT_EQ(step, 2408);
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_GE(lines.back()["outer_exchanges"], 600);
  const ProgramEnd end = train_on(
      3, without_link_flags("resumed") + quorum + Words{"--steps=2408", "--resume_from=" + oldest_checkpoint()});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_EQ(metrics("resumed").back()["event"], "end");
}

// The set of ranks that average their gradients does not depend on the levels of exchanges.
TEST_F(NarrowcastTrainOuterTest, PlansTheBytesInANode) {
  const ProgramEnd end = train_on(2, flags("run", {"--sync_every=10", "--levels=one"}));
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  const auto lines = metrics("run");
  const nlohmann::json& plan = lines.front();
  const int64_t parameters = plan["parameters"].get<int64_t>();
  EXPECT_EQ(plan["local_group"], "node");
  EXPECT_EQ(plan["payload_bytes_per_step_and_rank"].get<int64_t>(), 4 * parameters + (4 * parameters + 9) / 10);
  EXPECT_EQ(lines.back()["payload_bytes_sent"].get<int64_t>(), 60 * 4 * parameters + 6 * 4 * parameters);
}

// With an exchange in each step, plain SGD and no clipping, the training equals the one without a hook, up to rounding.
TEST_F(NarrowcastTrainOuterTest, AnExchangeInEachStepIsTheTrainingWithoutAHook) {
  const Words sgd = {"--optimizer=sgd", "--momentum=0", "--learning_rate=0.05", "--clip_grad_norm=0", "--steps=20"};
  Words without_link = flags("none", Words{"--hook=allreduce"} + sgd);
  std::erase_if(without_link, [](const std::string& word) { return word.starts_with("--link_"); });
  ASSERT_EQ(train_on(3, without_link).exit_code, 0);
  ASSERT_EQ(train_on(3, flags("outer", Words{"--sync_every=1", "--local_group=none"} + sgd)).exit_code, 0);
  const double expected = metrics("none").back()["validation_loss"];
  EXPECT_NEAR(metrics("outer").back()["validation_loss"].get<double>(), expected, 1e-5);
}

TEST_F(NarrowcastTrainOuterTest, AReportOfADryRunNamesBytesFragmentsAndStaleness) {
  const ProgramEnd end = train_alone(small_gpt() + Words{"--dry_run", "--sync_every=6", "--fragments=3",
                                                         "--overlap_steps=1", "--node_size=0"});  // The default.
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, AllOf(HasSubstr("payload_bytes_per_exchange_and_rank"), HasSubstr("fragments  "),
                                HasSubstr("overlap_steps  "), HasSubstr("replicas  ")));
}

}  // namespace
}  // namespace narrowcast::testing
