// narrowcast-train with real processes, sockets and text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/hooks.h>
#include "tests/programs/train_commands.h"
#include "tests/support/digits.h"
#include "tests/support/temporary_folder.h"
#include "trainer/train/files/model_file.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

double largest_difference(const std::string& path, const std::string& other_path) {
  const auto model = files::load_model(path).model;
  const auto other = files::load_model(other_path).model;
  double largest = 0;
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    largest = std::max(largest, (model->parameters()[i] - other->parameters()[i]).abs().max().item<double>());
  }
  return largest;
}

// Removes the line breaks of a help text.
std::string one_line(const std::string& text) {
  std::istringstream words(text);
  std::string result;
  for (std::string word; words >> word;) {
    result += (result.empty() ? "" : " ") + word;
  }
  return result;
}

// One hook of each kind; tests/trainer/train/job/hook_jobs_test.cpp trains with every hook.
class NarrowcastTrainHookTest : public ::testing::TestWithParam<std::string> {};

TEST_P(NarrowcastTrainHookTest, TrainsOnTwoRanksAndLeavesItsFiles) {
  const TemporaryFolder folder;
  Words flags = small_gpt() + Words{"--hook=" + GetParam(), "--output_dir=" + folder / "run"};
  if (hooks::power_sgd_rank_of(GetParam())) flags.push_back("--power_sgd_start=2");
  if (GetParam() == "post_local_sgd") flags.push_back("--sync_every=3");
  const ProgramEnd end = train_on(2, flags);
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, AllOf(HasSubstr("validation loss"), HasSubstr("bigram entropy"), HasSubstr("sample:")));
  EXPECT_THAT(end.errors, AllOf(HasSubstr("step 6/6"), Not(HasSubstr("[1]:"))));  // Only rank 0 prints.
  const files::SavedModel saved = files::load_model(folder / "run/model.safetensors");
  EXPECT_EQ(saved.name, "char_gpt");
  EXPECT_EQ(saved.model->options()["width"], 16);
  EXPECT_GT(saved.vocabulary.size(), 50U);
  const nlohmann::json result = json_lines(folder / "run/metrics.jsonl").back();
  EXPECT_EQ(result["event"], "end");
  EXPECT_EQ(result["replicas_identical"], GetParam() != "noop");
}

INSTANTIATE_TEST_SUITE_P(Hooks, NarrowcastTrainHookTest,
                         ::testing::Values("none", "allreduce", "noop", "var5", "power_sgd", "post_local_sgd"));

class NarrowcastTrainTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder;
};

TEST_F(NarrowcastTrainTest, WritesMetricsResultsAndProgress) {
  const ProgramEnd end =
      train_alone(small_gpt() + Words{"--log_every=2", "--eval_every=3", "--output_dir=" + folder / "run"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, AllOf(StartsWith("training loss"), Not(HasSubstr("step "))));
  EXPECT_THAT(end.errors, AllOf(HasSubstr("tokens/s"), Not(HasSubstr("\x1b"))));
  std::vector<std::string> events;
  std::vector<nlohmann::json> lines = json_lines(folder / "run/metrics.jsonl");
  for (const auto& line : lines) {
    events.push_back(line["event"]);
  }
  EXPECT_THAT(events, ::testing::ElementsAre("start", "step", "evaluation", "step", "step", "evaluation", "end"));
  EXPECT_EQ(lines[0]["steps"], 6);
  EXPECT_EQ(lines[0]["ranks"], 1);
  EXPECT_EQ(lines[5]["validation_loss"], lines[6]["validation_loss"]);
  EXPECT_GT(lines[4]["units_per_second"], 0);
}

// SGD's steps are linear in the gradients. Gradients of one rank and of several, and of one backward pass and of
// several, only differ by float32 roundings, about 1e-7 of gradients below 1, in six steps at a rate of 0.1.
TEST_F(NarrowcastTrainTest, GivesTheSameParametersForEveryWorldAccumulationAndBuckets) {
  const Words flags = small_gpt() + Words{"--hook=none", "--optimizer=sgd", "--learning_rate=0.1", "--seed=5"};
  ASSERT_EQ(train_alone(flags + Words{"--output_dir=" + folder / "one"}).exit_code, 0);
  ASSERT_EQ(train_alone(flags + Words{"--output_dir=" + folder / "again"}).exit_code, 0);
  ASSERT_EQ(train_alone(flags + Words{"--output_dir=" + folder / "other", "--seed=6"}).exit_code, 0);
  const std::string one = folder / "one/model.safetensors";
  EXPECT_EQ(largest_difference(one, folder / "again/model.safetensors"), 0);
  EXPECT_GT(largest_difference(one, folder / "other/model.safetensors"), 1e-3);
  const std::string run = "--output_dir=" + folder / "run";
  for (const auto& [ranks, more] : std::vector<std::pair<int, Words>>{
           {2, {"--accumulation_steps=3", "--gradient_as_bucket_view", "--static_graph"}},
           {3, {"--bucket_cap_mb=0.01", "--find_unused_parameters"}}}) {
    const ProgramEnd end = train_on(ranks, flags + more + Words{"--overwrite", run});
    ASSERT_EQ(end.exit_code, 0) << end.errors;
    const std::string nodes = "1 x " + std::to_string(ranks);
    EXPECT_THAT(end.errors, HasSubstr("nodes: " + nodes + " (one level)\n"));
    const nlohmann::json plan = json_lines(folder / "run/metrics.jsonl").front();
    EXPECT_EQ(plan.at("nodes"), nodes);
    EXPECT_EQ(plan.at("node_of_rank"), nlohmann::json(std::vector<int>(static_cast<size_t>(ranks))));
    EXPECT_EQ(plan.at("exchange_levels"), 1);
    EXPECT_LT(largest_difference(one, folder / "run/model.safetensors"), 1e-6) << more[0];
  }
}

// A model of 2.3 MiB, for which there are several bucket sizes. Every rank is a node, so gradients are sent.
TEST_F(NarrowcastTrainTest, ChoosesTheSizeOfBucketsAndSaysWhy) {
  const Words flags =
      small_gpt() + Words{"--width=224", "--hook=int8", "--node_size=1", "--checkpoint_dir=" + folder / "checkpoints",
                          "--output_dir=" + folder / "run"};
  const ProgramEnd end = train_on(2, flags);
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("buckets of "), HasSubstr(" MiB: backward pass ")));
  std::vector<nlohmann::json> choices;
  for (const auto& line : json_lines(folder / "run/metrics.jsonl")) {
    if (line["event"] == "buckets") choices.push_back(line);
  }
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(choices[0]["step"], 3);
  EXPECT_EQ(choices[0]["sizes"].size(), 3u);
  const ProgramEnd resumed = train_on(2, flags + Words{"--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
  EXPECT_THAT(resumed.errors, AllOf(HasSubstr("resumes from "), Not(HasSubstr("buckets of "))));
}

TEST_F(NarrowcastTrainTest, DryRunPrintsThePlanAndDoesNothing) {
  const ProgramEnd end = train_alone(small_gpt() + Words{"--dry_run", "--output_dir=" + folder / "run"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_THAT(end.output, AllOf(HasSubstr("parameters"), HasSubstr("char_gpt"), HasSubstr("batch_size_per_rank")));
  EXPECT_THAT(end.errors, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_F(NarrowcastTrainTest, PlanOfTwoRanksIsPrintedOnce) {
  const ProgramEnd end = train_on(2, small_gpt() + Words{"--dry_run", "--hook=quantize_per_channel"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(count_of("batch_size_per_rank", end.output), 1);
  EXPECT_THAT(end.output, AllOf(HasSubstr("payload_bytes_per_step_and_rank"), HasSubstr("quantize_per_channel")));
}

TEST_F(NarrowcastTrainTest, HelpListsFlagsByGroupAndNamesEveryFormat) {
  const ProgramEnd end = train_alone({"--help"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_THAT(end.errors, IsEmpty());
  for (const char* text : {"Model:", "Exchange of gradients:", "--hook", "Examples", "narrowcast-run", "3 "}) {
    EXPECT_THAT(end.output, HasSubstr(text));
  }
  const std::string help = one_line(end.output);
  EXPECT_THAT(help, HasSubstr("Hook that averages gradients; docs/reference/hooks.md lists them."));
  EXPECT_THAT(help, HasSubstr("With quantized_allreduce: wire format, such as int8_b32 or var5;"));
  EXPECT_THAT(help, HasSubstr("With wire-format hooks, auto: add the rounding error of a step to the next step."));
  EXPECT_THAT(help, HasSubstr("With PowerSGD hooks: seed of the random factors."));
  EXPECT_THAT(help, HasSubstr("--channel_size (integer, elements, at least 1; default: 512)"));
}

// The launcher's variables define which ranks share a node; ranks that never meet cannot find out.
TEST_F(NarrowcastTrainTest, DryRunCountsWhatIsSentBetweenNodes) {
  const auto bytes = [](const Words& flags) {
    auto environment = one_of_two(/*rank=*/0, /*port=*/1);
    environment["LOCAL_RANK"] = "0";
    environment["LOCAL_WORLD_SIZE"] = "2";
    const Words program = Words{kNarrowcastTrain} + small_gpt() + Words{"--dry_run", "--hook=int8"};
    const ProgramEnd end = run_to_end(program + flags, environment);
    EXPECT_EQ(end.exit_code, 0) << end.errors;
    const std::string name = "payload_bytes_per_step_and_rank ";
    return std::stoll(end.output.substr(end.output.find(name) + name.size()));
  };
  EXPECT_EQ(bytes({}), 0);
  EXPECT_GT(bytes({"--node_size=1"}), 0);
  EXPECT_GT(bytes({"--levels=one"}), 0);
}

// Reports of two ranks, each of which is a node: a message is sent once.
void expect_compression(const std::vector<nlohmann::json>& lines) {
  const double sent = lines.back().at("payload_bytes_sent");
  const double expected = lines.back().at("payload_bytes_without_hook").get<double>() / sent;
  for (const auto& line : lines) {
    EXPECT_EQ(line.contains("compression"), line["event"] == "step" || line["event"] == "end") << line;
    EXPECT_NEAR(line.value("compression", expected), expected, 1e-9) << line;
  }
}

TEST_F(NarrowcastTrainTest, SendsWhatThePlanSaysForPowerSgd) {
  const Words flags = small_gpt() + Words{"--hook=power_sgd",           "--power_sgd_rank=2", "--power_sgd_start=0",
                                          "--power_sgd_wire=int8_b128", "--bucket_cap_mb=25", "--log_every=2"};
  const ProgramEnd end = train_on(2, flags + Words{"--node_size=1", "--output_dir=" + folder / "run"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  const auto lines = json_lines(folder / "run/metrics.jsonl");
  EXPECT_EQ(lines.front()["power_sgd_rank"], 2);
  EXPECT_EQ(lines.front()["power_sgd_wire"], "int8_b128");
  // The whole model is one bucket.
  EXPECT_GT(lines.back()["payload_bytes_sent"].get<int64_t>(), 0);
  EXPECT_EQ(lines.back()["payload_bytes_sent"], 6 * lines.front()["payload_bytes_per_step_and_rank"].get<int64_t>());
  EXPECT_EQ(lines.back()["replicas_identical"], true);
  expect_compression(lines);
  EXPECT_GT(lines.back()["peak_memory_bytes"].get<int64_t>(), int64_t{10} << 20);
  EXPECT_THAT(end.output, HasSubstr("memory, at most  "));
}

// With buckets of some KiB it sends more than the minimum.
TEST_F(NarrowcastTrainTest, PlansTheLeastThatWholeBucketsLeadTo) {
  const auto lines_with = [&](const std::string& cap) {
    const Words flags = small_gpt() + Words{"--hook=batched_power_sgd", "--power_sgd_start=0", "--node_size=1"};
    const ProgramEnd end = train_on(2, flags + Words{"--bucket_cap_mb=" + cap, "--output_dir=" + folder / cap});
    EXPECT_EQ(end.exit_code, 0) << end.errors;
    return json_lines(folder / (cap + "/metrics.jsonl"));
  };
  const auto whole = lines_with("25");
  const int64_t least = whole.front().at("least_payload_bytes_per_step_and_rank");
  EXPECT_FALSE(whole.front().contains("payload_bytes_per_step_and_rank"));
  EXPECT_EQ(whole.back()["payload_bytes_sent"], 6 * least);
  const auto parts = lines_with("0.01");
  EXPECT_EQ(parts.front()["least_payload_bytes_per_step_and_rank"], least);
  EXPECT_GT(parts.back()["payload_bytes_sent"], 6 * least);
}

TEST_F(NarrowcastTrainTest, RoundsNothingOnOneNode) {
  const ProgramEnd end = train_on(2, small_gpt() + Words{"--hook=int8", "--output_dir=" + folder / "run"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, HasSubstr("nodes: 1 x 2 (one node: nothing is rounded)\n"));
  for (const auto& line : json_lines(folder / "run/metrics.jsonl")) {
    EXPECT_FALSE(line.contains("compression")) << "nothing is sent: " << line;
  }
}

TEST_F(NarrowcastTrainTest, SaysWhichRanksShareNodesAndTheCompression) {
  const Words flags = {"--hook=int8", "--node_size=1", "--bucket_cap_mb=25", "--log_every=2"};
  const ProgramEnd end = train_on(2, small_gpt() + flags + Words{"--output_dir=" + folder / "run"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, HasSubstr("nodes: 2 x 1 (one level)\n"));
  expect_compression(json_lines(folder / "run/metrics.jsonl"));
}

TEST_F(NarrowcastTrainTest, SendsNothingOnOneNodeWithPowerSgd) {
  const Words flags = small_gpt() + Words{"--hook=power_sgd", "--power_sgd_start=0", "--levels=two"};
  const ProgramEnd end = train_on(2, flags + Words{"--output_dir=" + folder / "run"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, HasSubstr("nodes: 1 x 2\n"));
  const auto lines = json_lines(folder / "run/metrics.jsonl");
  EXPECT_EQ(lines.front()["exchange_levels"], 2);
  EXPECT_EQ(lines.front()["payload_bytes_per_step_and_rank"], 0);
  // P, Q and the rest, twice, of two ranks: less than the gradients of one.
  EXPECT_GT(lines.front()["node_memory_bytes"].get<int64_t>(), 0);
  EXPECT_LT(lines.front()["node_memory_bytes"].get<int64_t>(), 4 * lines.front()["parameters"].get<int64_t>());
  EXPECT_EQ(lines.back()["payload_bytes_sent"], 0);
  EXPECT_EQ(lines.back()["replicas_identical"], true);
}

TEST_F(NarrowcastTrainTest, SendsWhatThePlanSaysForAChannelSize) {
  const Words flags = small_gpt() + Words{"--hook=quantize_per_channel", "--channel_size=100", "--log_every=2"};
  const ProgramEnd end = train_on(2, flags + Words{"--output_dir=" + folder / "run"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  const auto lines = json_lines(folder / "run/metrics.jsonl");
  EXPECT_EQ(lines.front()["channel_size"], 100);
  // With buckets of 25 MiB the whole model is one bucket.
  EXPECT_EQ(lines.back()["payload_bytes_sent"], 6 * lines.front()["payload_bytes_per_step_and_rank"].get<int64_t>());
  EXPECT_EQ(lines.back()["replicas_identical"], true);
  expect_compression(lines);
}

// The default of a job of several ranks: it prints its choice, and the measurements behind it.
TEST_F(NarrowcastTrainTest, DecidesForTheFastestHookByItself) {
  const Words flags = small_gpt() + Words{"--node_size=1", "--auto_bits=6", "--output_dir=" + folder / "run"};
  const ProgramEnd end = train_on(3, flags);
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("hook auto: "), HasSubstr("25 MiB: allreduce"), HasSubstr("var6"),
                                Not(HasSubstr("var4")), HasSubstr("between nodes, measured")));
  const auto lines = json_lines(folder / "run/metrics.jsonl");
  EXPECT_EQ(lines[0]["hook"], "auto");
  EXPECT_GT(lines[0]["link"]["between_nodes"]["gbit_per_second"], 0);
  EXPECT_GT(lines[0]["link"]["between_nodes"]["us_per_hop"], 0);
  EXPECT_EQ(lines[1]["event"], "hook");
  EXPECT_THAT(lines[1]["decision"].get<std::string>(), HasSubstr("25 MiB: allreduce"));
  EXPECT_GT(lines.back()["measuring_bytes_sent"], 4 << 20) << "the link's messages, and exchanges of four candidates";
  EXPECT_EQ(lines.back()["replicas_identical"], true);
}

// The link is so slow that it determines the choice.
TEST_F(NarrowcastTrainTest, TakesTheLinkThatIsGiven) {
  const Words flags = small_gpt() + Words{"--node_size=1", "--link_gbit=0.0001", "--link_us=100"};
  const ProgramEnd end = train_on(2, flags + Words{"--output_dir=" + folder / "run"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("hook auto: int8 ("), HasSubstr("link 0.0001 Gbit/s and 100"),
                                HasSubstr("us between nodes, given\n")));
  const auto lines = json_lines(folder / "run/metrics.jsonl");
  EXPECT_EQ(lines[0]["link_gbit"], 0.0001);
  EXPECT_DOUBLE_EQ(lines[0]["link"]["between_nodes"]["us_per_hop"], 100);
  EXPECT_EQ(lines.back()["measuring_bytes_sent"], 0);
}

TEST_F(NarrowcastTrainTest, ExchangesWithNobodyAlone) {
  EXPECT_THAT(train_alone(small_gpt() + Words{"--dry_run"}).output, MatchesRegex("(.|\n)*\nhook  *none\n(.|\n)*"));
  EXPECT_THAT(train_on(1, small_gpt()).errors,
              AllOf(HasSubstr("hook auto: allreduce: one rank has nothing to send"), Not(HasSubstr("nodes: "))));
}

TEST_F(NarrowcastTrainTest, NeedsNoPython) {
  for (const std::string& program : {kNarrowcastTrain, kNarrowcastRun}) {
    const ProgramEnd end = run_to_end({"ldd", program});
    EXPECT_EQ(end.exit_code, 0);
    EXPECT_THAT(end.output, AllOf(HasSubstr("libc.so"), Not(HasSubstr("python")), Not(HasSubstr("not found"))));
  }
}

TEST_F(NarrowcastTrainTest, MlpLearnsDigits) {
  write_digits(folder);
  const ProgramEnd end =
      train_on(2, {"--model=mlp", "--hidden=32", "--data=" + folder.path().string(), "--steps=80", "--batch_size=20",
                   "--hook=quantize_per_tensor", "--output_dir=" + folder / "run"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, HasSubstr("samples/s"));
  EXPECT_THAT(end.output, AllOf(Not(HasSubstr("bigram")), Not(HasSubstr("sample:"))));
  // Guessing among ten digits is ln 10 = 2.3.
  EXPECT_LT(json_lines(folder / "run/metrics.jsonl").back()["validation_loss"], 0.5);
  EXPECT_EQ(files::load_model(folder / "run/model.safetensors").model->options()["inputs"], 64);
}

}  // namespace
}  // namespace narrowcast::testing
