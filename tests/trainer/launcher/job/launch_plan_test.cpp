#include "trainer/launcher/job/launch_plan.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::launcher {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

std::string choice_refusal(const std::function<void()>& action) {
  return testing::error_message<c10::ValueError>(action);
}

StreamChoices parse(const std::string& text) { return StreamChoices::parse("--tee", text); }

TEST(StreamChoices, CountAsTorchrunDoes) {
  for (int value = 0; value <= 3; ++value) {
    const Streams streams = parse(std::to_string(value)).of(5);
    EXPECT_EQ(streams.output, value == 1 || value == 3) << value;
    EXPECT_EQ(streams.error, value == 2 || value == 3) << value;
  }
}

TEST(StreamChoices, CanDifferByLocalRank) {
  const StreamChoices choices = parse("0:3,2:1");
  EXPECT_TRUE(choices.of(0).error);
  EXPECT_FALSE(choices.of(1).output);
  EXPECT_TRUE(choices.of(2).output);
  EXPECT_FALSE(choices.of(2).error);
  EXPECT_EQ(choices.largest_rank(), 2);
}

TEST(StreamChoices, KnowWhetherTheyAreEmpty) {
  EXPECT_TRUE(parse("0").empty());
  EXPECT_TRUE(parse("1:0").empty());
  EXPECT_FALSE(parse("2").empty());
  EXPECT_FALSE(parse("1:1").empty());
}

TEST(StreamChoices, RefuseTheRest) {
  for (const char* const text : {"", "4", "-1", "x", "0:", ":1", "0:4", "-1:1", "0:1,", "0:1:2", "0:1,1"}) {
    EXPECT_THAT(choice_refusal([&] { parse(text); }), StartsWith(std::string("--tee=") + text + ": must be 0 (none)"));
  }
  EXPECT_EQ(choice_refusal([] { parse("1:1,1:2"); }), "--tee=1:1,1:2: names local rank 1 twice");
}

TEST(LocalRanks, AreListed) {
  EXPECT_THAT(parse_local_ranks("--f", "2,0"), ElementsAre(0, 2));
  EXPECT_THAT(parse_local_ranks("--f", ""), IsEmpty());
  EXPECT_EQ(choice_refusal([] { parse_local_ranks("--f", "0;1"); }), "--f=0;1: must be local ranks like 0,2");
}

TEST(LocalRanks, MustExist) {
  EXPECT_EQ(choice_refusal([] { check_local_ranks({.redirects = parse("2:1")}, 2); }),
            "--redirects names local rank 2, but --nproc_per_node is 2");
  EXPECT_EQ(choice_refusal([] {
              check_local_ranks({.shown_ranks = {0, 7}}, 2);
            }),
            "--local_ranks_filter names local rank 7, but --nproc_per_node is 2");
  EXPECT_EQ(choice_refusal([] { check_local_ranks({.tee = parse("1:3"), .shown_ranks = {1}}, 2); }),
            "nothing was thrown");
}

TEST(WorkerTargets, AreShownUnlessRedirected) {
  const OutputChoices choices{.redirects = parse("3"), .tee = parse("1:1")};
  const WorkerTargets zero = targets_for(choices, 0, "run");
  EXPECT_FALSE(zero.output.shown);
  EXPECT_EQ(zero.output.file, "run/stdout.log");
  const WorkerTargets one = targets_for(choices, 1, "run");
  EXPECT_TRUE(one.output.shown);  // tee takes precedence
  EXPECT_EQ(one.output.file, "run/stdout.log");
  EXPECT_FALSE(one.error.shown);
}

TEST(WorkerTargets, AreHiddenByTheFilter) {
  const OutputChoices choices{.tee = parse("2"), .shown_ranks = {0}};
  EXPECT_TRUE(targets_for(choices, 0, "run").error.shown);
  const WorkerTargets hidden = targets_for(choices, 1, "run");
  EXPECT_FALSE(hidden.output.shown);
  EXPECT_TRUE(hidden.output.file.empty());
  EXPECT_FALSE(hidden.error.shown);
  EXPECT_EQ(hidden.error.file, "run/stderr.log");
}

TEST(Filters, AreListed) {
  EXPECT_THAT(parse_filters("--f", "apple,orange"), ElementsAre("apple", "orange"));
  EXPECT_THAT(parse_filters("--f", "a,,b,c,,"), ElementsAre("a,b", "c,"));
  for (const char* const list : {"", "a,", ",a", "a,b,"}) {
    EXPECT_EQ(choice_refusal([&] { parse_filters("--f", list); }),
              std::string("--f=") + list + ": contains an empty text, which every line matches");
  }
}

TEST(WorkerTargets, CopyLinesOfTeedStreamsThatAreShown) {
  const OutputChoices choices{.tee = parse("0:1,1:1"), .shown_ranks = {0}, .output_filters = {"loss"}};
  const WorkerTargets zero = targets_for(choices, 0, "run/attempt_0/0");
  EXPECT_EQ(zero.output.filter.file, "run/attempt_0/filtered_stdout.log");
  EXPECT_THAT(zero.output.filter.texts, ElementsAre("loss"));
  EXPECT_THAT(zero.error.filter.texts, IsEmpty());
  EXPECT_THAT(targets_for(choices, 1, "run/attempt_0/1").output.filter.texts, IsEmpty()) << "it is not shown";
}

LaunchOptions options(int64_t nproc) {
  LaunchOptions wanted;
  wanted.command = {"/bin/train", "--steps=3"};
  wanted.nproc_per_node = nproc;
  wanted.role = "default";
  wanted.signals_to_handle = "SIGTERM,SIGINT";
  wanted.output.run_folder = "/runs/7";
  return wanted;
}

Round two_ranks() {
  Round round;
  round.master_addr = "127.0.0.1";
  round.master_port = 29501;
  round.run_id = "job";
  round.world_size = 2;
  round.role_world_size = 2;
  return round;
}

TEST(LaunchPlan, LetsWorkersUseTheirSimulatedNetwork) {
  LaunchOptions simulated = options(2);
  simulated.networks = {.text = "1 Gbit/s", .interface = "eth0", .namespaces = {7, 9}};
  const auto workers = plan_workers(simulated, two_ranks(), {{"GLOO_SOCKET_IFNAME", "eth7"}, {"NCCL_NET", "IB"}});
  EXPECT_EQ(workers[0].network, 7);
  EXPECT_EQ(workers[1].network, 9);
  EXPECT_THAT(workers[1].environment,
              IsSupersetOf({Pair("NARROWCAST_SIMULATED_NETWORK", "1 Gbit/s"), Pair("GLOO_SOCKET_IFNAME", "eth0"),
                            Pair("NCCL_SOCKET_IFNAME", "eth0"), Pair("NCCL_NET", "Socket"),
                            Pair("NCCL_P2P_DISABLE", "1"), Pair("NCCL_SHM_DISABLE", "1")}));
  EXPECT_EQ(open_files_needed(simulated, 0), open_files_needed(options(2), 0) + 2);
  EXPECT_EQ(plan_workers(options(2), two_ranks(), {})[1].network, -1);
}

TEST(LaunchPlan, GivesWorkersWhatTorchrunGives) {
  const auto workers = plan_workers(options(2), two_ranks(), {{"HOME", "/home/me"}});
  ASSERT_EQ(workers.size(), 2U);
  // The table of docs/reference/launcher.md, for rank 1.
  const EnvironmentVariables expected = {{"HOME", "/home/me"},
                                         {"RANK", "1"},
                                         {"LOCAL_RANK", "1"},
                                         {"WORLD_SIZE", "2"},
                                         {"LOCAL_WORLD_SIZE", "2"},
                                         {"GROUP_RANK", "0"},
                                         {"GROUP_WORLD_SIZE", "1"},
                                         {"ROLE_NAME", "default"},
                                         {"ROLE_RANK", "1"},
                                         {"ROLE_WORLD_SIZE", "2"},
                                         {"MASTER_ADDR", "127.0.0.1"},
                                         {"MASTER_PORT", "29501"},
                                         {"TORCHELASTIC_ERROR_FILE", "/runs/7/attempt_0/1/error.json"},
                                         {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                         {"TORCHELASTIC_RESTART_COUNT", "0"},
                                         {"TORCHELASTIC_RUN_ID", "job"},
                                         {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT"},
                                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                         {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                         {"OMP_NUM_THREADS", "1"}};
  EXPECT_EQ(workers[1].environment, expected);
  EXPECT_THAT(workers[0].environment, Contains(Pair("RANK", "0")));
}

TEST(LaunchPlan, RefusesFiltersThatCopyNothing) {
  LaunchOptions wanted = options(2);
  wanted.output.error_filters = {"x"};
  wanted.output.tee = StreamChoices::parse("--tee", "1");
  EXPECT_EQ(choice_refusal([&] { check_workers(wanted, {}); }),
            "--duplicate_stderr_filters needs --tee for this stream of a local rank that is shown");
  wanted.output.tee = StreamChoices::parse("--tee", "1:2");
  check_workers(wanted, {});
  wanted.output.shown_ranks = {0};
  EXPECT_NE(choice_refusal([&] { check_workers(wanted, {}); }), "nothing was thrown");
}

TEST(LaunchPlan, HidesAllGpusButOneIfAsked) {
  LaunchOptions wanted = options(2);
  wanted.virtual_local_rank = true;
  const auto workers = plan_workers(wanted, two_ranks(), {});
  EXPECT_THAT(workers[1].environment, IsSupersetOf({Pair("LOCAL_RANK", "0"), Pair("CUDA_VISIBLE_DEVICES", "1")}));
  EXPECT_THAT(workers[1].environment, IsSupersetOf({Pair("RANK", "1"), Pair("LOCAL_WORLD_SIZE", "2")}));
  const EnvironmentVariables some = {{"CUDA_VISIBLE_DEVICES", "GPU-8f, 5,7"}};
  const auto chosen = plan_workers(wanted, two_ranks(), some);
  EXPECT_EQ(chosen[0].environment.at("CUDA_VISIBLE_DEVICES"), "GPU-8f");
  EXPECT_EQ(chosen[1].environment.at("CUDA_VISIBLE_DEVICES"), "5");
  check_workers(wanted, some);
  EXPECT_EQ(choice_refusal([&] {
              check_workers(wanted, {{"CUDA_VISIBLE_DEVICES", "3"}});
            }),
            "--virtual_local_rank: local rank 1 has no GPU in CUDA_VISIBLE_DEVICES=3");
}

TEST(LaunchPlan, PutsTheTemplateBeforeLines) {
  LaunchOptions wanted = options(2);
  EXPECT_EQ(plan_workers(wanted, two_ranks(), {})[1].prefix, "[1]: ");
  wanted.line_prefix = "${hostname}/${role_name}/${local_rank}/${rank} ";
  wanted.host = "alpha";
  Round third = two_ranks();
  third.first_rank = 4;
  EXPECT_EQ(plan_workers(wanted, third, {})[1].prefix, "alpha/default/1/5 ");
}

TEST(LaunchPlan, BindsWorkersToProcessors) {
  LaunchOptions wanted = options(2);
  EXPECT_THAT(plan_workers(wanted, two_ranks(), {})[1].processors, IsEmpty());
  wanted.processors = {{0}, {1, 2}};
  EXPECT_THAT(plan_workers(wanted, two_ranks(), {})[1].processors, ElementsAre(1, 2));
}

TEST(LaunchPlan, KnowsHowManyFilesAreOpen) {
  EXPECT_EQ(open_files_needed(options(8), 0), 32 + 16);
  EXPECT_EQ(open_files_needed(options(8), 16), 32 + 16 + 32);
  LaunchOptions in_place = options(8);
  in_place.in_place = true;
  EXPECT_EQ(open_files_needed(in_place, 16), 32 + 16 + 64);
  LaunchOptions teed = options(8);
  teed.output.tee = StreamChoices::parse("--tee", "3");
  EXPECT_EQ(open_files_needed(teed, 16), 32 + 32 + 32);
}

TEST(LaunchPlan, WorkersUnderstandIt) {
  for (const WorkerCommand& worker : plan_workers(options(2), two_ranks(), {})) {
    const WorkerEnv env = WorkerEnv::from_variables(worker.environment);
    EXPECT_EQ(env.rank, worker.rank);
    EXPECT_EQ(env.local_rank, worker.local_rank);
    EXPECT_EQ(env.world_size, 2);
    EXPECT_EQ(env.master_port, 29501);
    EXPECT_TRUE(env.use_agent_store);
    EXPECT_EQ(env.error_file, worker.error_file);
  }
}

TEST(LaunchPlan, GivesEachRankTheSameCommand) {
  const auto workers = plan_workers(options(3), two_ranks(), {});
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    EXPECT_EQ(workers[rank].rank, static_cast<int64_t>(rank));
    EXPECT_EQ(workers[rank].arguments, (std::vector<std::string>{"/bin/train", "--steps=3"}));
  }
}

TEST(LaunchPlan, LimitsThreadsOnlyOfSeveralWorkersAndUnlessToldOtherwise) {
  EXPECT_THAT(plan_workers(options(1), two_ranks(), {})[0].environment, Not(Contains(Key("OMP_NUM_THREADS"))));
  EXPECT_THAT(plan_workers(options(2), two_ranks(), {{"OMP_NUM_THREADS", "4"}})[0].environment,
              Contains(Pair("OMP_NUM_THREADS", "4")));
  // An empty value counts as not set.
  EXPECT_THAT(plan_workers(options(2), two_ranks(), {{"OMP_NUM_THREADS", ""}})[0].environment,
              Contains(Pair("OMP_NUM_THREADS", "1")));
  EXPECT_TRUE(limits_threads(options(2), {}));
  EXPECT_FALSE(limits_threads(options(1), {}));
  EXPECT_FALSE(limits_threads(options(2), {{"OMP_NUM_THREADS", "4"}}));
}

TEST(LaunchPlan, OverridesAnOuterJobButKeepsTheUsersChoices) {
  const EnvironmentVariables outer = {{"RANK", "5"},
                                      {"WORLD_SIZE", "9"},
                                      {"MASTER_PORT", "1"},
                                      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}};
  EXPECT_THAT(plan_workers(options(1), two_ranks(), outer)[0].environment,
              IsSupersetOf(EnvironmentVariables{{"RANK", "0"},
                                                {"WORLD_SIZE", "2"},
                                                {"MASTER_PORT", "29501"},
                                                {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}}));
}

TEST(LaunchPlan, GivesEachAttemptAFolderAndANumber) {
  Round third = two_ranks();
  third.restart_count = 2;
  third.max_restarts = 5;
  const WorkerCommand worker = plan_workers(options(2), third, {})[0];
  EXPECT_EQ(worker.error_file, "/runs/7/attempt_2/0/error.json");
  EXPECT_THAT(worker.environment, IsSupersetOf(EnvironmentVariables{{"TORCHELASTIC_RESTART_COUNT", "2"},
                                                                    {"TORCHELASTIC_MAX_RESTARTS", "5"}}));
}

TEST(LaunchPlan, CountsRanksOnwardsFromTheNodesFirstAndRolesApart) {
  Round second_node = two_ranks();
  second_node.node_rank = 1;
  second_node.nodes = 2;
  second_node.first_rank = 4;
  second_node.world_size = 6;
  second_node.role_first_rank = 1;
  second_node.role_world_size = 3;
  LaunchOptions wanted = options(2);
  wanted.role = "reader";
  EXPECT_THAT(plan_workers(wanted, second_node, {})[1].environment,
              IsSupersetOf(EnvironmentVariables{{"RANK", "5"},
                                                {"LOCAL_RANK", "1"},
                                                {"GROUP_RANK", "1"},
                                                {"WORLD_SIZE", "6"},
                                                {"ROLE_NAME", "reader"},
                                                {"ROLE_RANK", "2"},
                                                {"ROLE_WORLD_SIZE", "3"}}));
}

TEST(LaunchPlan, NamesLogFilesOnlyIfAsked) {
  LaunchOptions wanted = options(2);
  EXPECT_TRUE(plan_workers(wanted, two_ranks(), {})[1].output.file.empty());
  wanted.output.redirects = StreamChoices::parse("--redirects", "1:3");
  const auto workers = plan_workers(wanted, two_ranks(), {});
  EXPECT_TRUE(workers[0].output.file.empty());
  EXPECT_EQ(workers[1].output.file, "/runs/7/attempt_0/1/stdout.log");
  EXPECT_EQ(workers[1].error.file, "/runs/7/attempt_0/1/stderr.log");
}

TEST(PlanWorkers, TellsWorkersWhetherTheyRecoverInPlace) {
  LaunchOptions options{.command = {"/bin/train"}, .output = {.run_folder = "/run"}, .in_place = true};
  EXPECT_THAT(plan_workers(options, {}, {})[0].environment, Contains(Pair("NARROWCAST_RECOVERY", "in_place")));
  options.in_place = false;
  const EnvironmentVariables inherited = {{"NARROWCAST_RECOVERY", "in_place"}};
  EXPECT_THAT(plan_workers(options, {}, inherited)[0].environment, Not(Contains(Key("NARROWCAST_RECOVERY"))));
}

TEST(PlanWorkers, NamesNodesThatMayChange) {
  const LaunchOptions options{
      .command = {"/bin/train"}, .nproc_per_node = 2, .output = {.run_folder = "/run"}, .in_place = true};
  EXPECT_THAT(plan_workers(options, {}, {})[1].environment, Not(Contains(Key("NARROWCAST_NODE")))) << "it is alone";
  const Round joined{.first_rank = 4, .restart_count = 3, .node = 7, .changes = 2};
  const WorkerCommand newcomer = plan_workers(options, joined, {})[1];
  EXPECT_THAT(newcomer.environment, Contains(Pair("NARROWCAST_NODE", "7/1")));
  EXPECT_THAT(newcomer.environment, Contains(Pair("TORCHELASTIC_RESTART_COUNT", "5"))) << "it is not the first process";
}

TEST(PlanReplacement, HasThePresentPlace) {
  const LaunchOptions options{
      .command = {"/bin/train"}, .nproc_per_node = 2, .output = {.run_folder = "/run"}, .in_place = true};
  const Round round{.nodes = 3, .first_rank = 4, .world_size = 6, .node = 3};
  const Round changed{.node_rank = 1, .nodes = 2, .first_rank = 2, .world_size = 4, .node = 3, .changes = 1};
  const WorkerCommand again = plan_replacement(options, changed, plan_workers(options, round, {})[1], 1);
  EXPECT_EQ(again.rank, 5) << "its name on this node";
  EXPECT_THAT(again.environment, AllOf(Contains(Pair("RANK", "3")), Contains(Pair("WORLD_SIZE", "4")),
                                       Contains(Pair("GROUP_RANK", "1")), Contains(Pair("NARROWCAST_NODE", "3/1"))));
  EXPECT_EQ(again.error_file, "/run/attempt_0.1/3/error.json");
}

TEST(PlanReplacement, HasANumberAndFilesOfItsOwn) {
  const LaunchOptions options{.command = {"/bin/train"},
                              .nproc_per_node = 2,
                              .output = {.redirects = StreamChoices::parse("--redirects", "3"), .run_folder = "/run"},
                              .in_place = true};
  const Round round{.first_rank = 4, .restart_count = 3};
  const WorkerCommand worker = plan_workers(options, round, {})[1];
  const WorkerCommand again = plan_replacement(options, round, worker, 2);
  EXPECT_EQ(again.rank, 5);
  EXPECT_EQ(again.local_rank, 1);
  EXPECT_EQ(again.error_file, "/run/attempt_3.2/5/error.json");
  EXPECT_EQ(again.error.file, "/run/attempt_3.2/5/stderr.log");
  EnvironmentVariables expected = worker.environment;
  expected["TORCHELASTIC_RESTART_COUNT"] = "5";
  expected["TORCHELASTIC_ERROR_FILE"] = "/run/attempt_3.2/5/error.json";
  EXPECT_EQ(again.environment, expected);
}

}  // namespace
}  // namespace narrowcast::launcher
