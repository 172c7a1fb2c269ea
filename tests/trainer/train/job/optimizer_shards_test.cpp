#include "trainer/train/job/optimizer_shards.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>

#include <narrowcast/mlp.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::job {
namespace {

using ::testing::HasSubstr;
using training::OptimizerShards;

TrainJob job_with(OptimizerShards shards, const std::string& hook = "none") {
  TrainJob job;
  job.training.optimizer_shards = shards;
  job.ddp.hook(hook);
  return job;
}

TEST(OptimizerShardsOfAJob, WhatARankKnowsAloneIsRefusedFirst) {
  const auto refusal = [](const TrainJob& job, int64_t world_size, at::Device device = at::kCPU) {
    WorkerEnv env;
    env.world_size = world_size;
    return testing::error_message<c10::ValueError>([&] {
      check_optimizer_shards(job, env);
      check_optimizer_shards_on(job, device);
    });
  };
  EXPECT_THAT(refusal(job_with(OptimizerShards::kNode), 1), HasSubstr("shard_optimizer: node needs several ranks"));
  EXPECT_THAT(refusal(job_with(OptimizerShards::kNode, "noop"), 2), HasSubstr("but the hook is noop"));
  TrainJob local = job_with(OptimizerShards::kNode, "post_local_sgd");
  local.outer = OuterOptions().sync_every(2);
  EXPECT_THAT(refusal(local, 2), HasSubstr("but the hook is post_local_sgd"));
  EXPECT_THAT(refusal(job_with(OptimizerShards::kNode), 2, at::Device(at::kCUDA, 1)),
              HasSubstr("the device is cuda:1"));
  EXPECT_THAT(refusal(job_with(OptimizerShards::kAll), 1), HasSubstr("shard_optimizer: all needs several ranks"));
  EXPECT_THAT(refusal(job_with(OptimizerShards::kAll, "noop"), 2), HasSubstr("but the hook is noop"));
  EXPECT_THAT(refusal(job_with(OptimizerShards::kAll), 2, at::Device(at::kCUDA, 1)), HasSubstr("all needs parameters"));
  for (const OptimizerShards shards : {OptimizerShards::kAuto, OptimizerShards::kOff}) {
    EXPECT_EQ(refusal(job_with(shards, "noop"), 1, at::Device(at::kCUDA, 0)), "nothing was thrown");
  }
  EXPECT_EQ(refusal(job_with(OptimizerShards::kNode), 2), "nothing was thrown");
}

TEST(OptimizerShardsOfAJob, SharedParametersAreRefusedWhereTheyCannotBe) {
  const auto refusal = [](const TrainJob& job, int64_t world_size, bool recovers = false,
                          at::Device device = at::kCPU) {
    WorkerEnv env;
    env.world_size = world_size;
    env.recovers_in_place = recovers;
    return testing::error_message<c10::ValueError>([&] {
      check_shared_parameters(job, env);
      check_optimizer_shards_on(job, device);
    });
  };
  const auto sharing = [](OptimizerShards shards, const std::string& hook = "none") {
    TrainJob job = job_with(shards, hook);
    job.training.share_parameters = true;
    return job;
  };
  EXPECT_EQ(refusal(job_with(OptimizerShards::kNode), 2, true), "nothing was thrown");
  EXPECT_EQ(refusal(sharing(OptimizerShards::kNode), 2), "nothing was thrown");
  EXPECT_EQ(refusal(sharing(OptimizerShards::kAuto), 2), "nothing was thrown");
  EXPECT_THAT(refusal(sharing(OptimizerShards::kOff), 2),
              HasSubstr("share_parameters: needs shard_optimizer node or auto, but it is off"));
  EXPECT_THAT(refusal(sharing(OptimizerShards::kAuto), 1), HasSubstr("share_parameters: needs several ranks"));
  for (const std::string hook : {"noop", "post_local_sgd"}) {
    EXPECT_THAT(refusal(sharing(OptimizerShards::kAuto, hook), 2), HasSubstr("the hook is " + hook));
  }
  EXPECT_EQ(refusal(sharing(OptimizerShards::kAuto), 2, true), "nothing was thrown");
  EXPECT_THAT(refusal(sharing(OptimizerShards::kAuto), 2, false, at::Device(at::kCUDA, 1)),
              HasSubstr("share_parameters: needs parameters on the CPU, but the device is cuda:1"));
  TrainJob verifying = sharing(OptimizerShards::kNode);
  verifying.verification.emplace();
  EXPECT_THAT(refusal(verifying, 2), HasSubstr("share_parameters: is of trainings"));
}

constexpr int64_t kParameters = 3290;

std::shared_ptr<models::Mlp> small_model() {
  return std::make_shared<models::Mlp>(models::MlpOptions{.inputs = 30, .hidden = 40});
}

// A job runs on this device, and its ranks form nodes of this size.
struct Place {
  std::optional<int64_t> node_size = std::nullopt;
  at::Device device = at::kCPU;
  bool recovers = false;
};

bool shards(TrainJob job, const ProcessGroupPtr& group, const Place& place = {}) {
  job.ddp.hook("int8").wire({.node_size = place.node_size});
  JobInputs inputs;
  inputs.device = place.device;
  inputs.model = small_model();
  const nlohmann::json plan;
  std::ostringstream output;
  const JobContext context = {
      .env = {}, .session = {}, .results = output, .progress = output, .progress_is_terminal = false};
  InPlaceRecovery recovery;
  const AgreedJob agreed{job, inputs, plan, group, context, place.recovers ? &recovery : nullptr};
  nlohmann::json shown;
  add_optimizer_shards(shown, agreed);
  const OptimizerShards found = optimizer_shards_of(agreed);
  const bool are_shards = found != OptimizerShards::kOff;
  EXPECT_EQ(shown.contains("optimizer_shards"), are_shards);
  const int64_t ranks = are_shards ? shown["optimizer_shards"].get<int64_t>() : 1;
  constexpr int64_t kAdamW = 8;  // Bytes of its two moments per parameter; shards are cut at multiples of 64 elements.
  EXPECT_NEAR(shown["optimizer_bytes"].get<int64_t>(), kAdamW * kParameters / ranks, kAdamW * 64);
  if (are_shards) {
    EXPECT_EQ(found, OptimizerShards::kNode);
    EXPECT_EQ(shown["optimizer_shards"], place.node_size.value_or(group->getSize()));
  }
  return are_shards;
}

TEST(OptimizerShardsOfAJob, AutoShardsWhereThatCostsNothing) {
  testing::run_ranks(3, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    const TrainJob job = job_with(OptimizerShards::kAuto);
    EXPECT_TRUE(shards(job, group));
    EXPECT_TRUE(shards(job, group, {.node_size = 2}));
    EXPECT_FALSE(shards(job, group, {.node_size = 1}));
    EXPECT_FALSE(shards(job, group, {.device = at::Device(at::kCUDA, 0)}));
    EXPECT_FALSE(shards(job, group, {.recovers = true})) << "a lost rank's shard would be lost";
    EXPECT_TRUE(shards(job, group, {.node_size = 2, .recovers = true})) << "the other node has all shards";
    EXPECT_FALSE(shards(job_with(OptimizerShards::kOff), group));
  });
  testing::run_ranks(1, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    EXPECT_FALSE(shards(job_with(OptimizerShards::kAuto), group));
  });
}

TEST(OptimizerShardsOfAJob, NodeIsAnErrorWhereNoRanksShareANode) {
  testing::run_ranks(2, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    const TrainJob job = job_with(OptimizerShards::kNode);
    EXPECT_TRUE(shards(job, group, {.recovers = true}));
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { shards(job, group, {.node_size = 1}); }),
                HasSubstr("shard_optimizer: node is impossible, because every node has one rank"));
    TrainJob sharing = job_with(OptimizerShards::kAuto);
    sharing.training.share_parameters = true;
    EXPECT_TRUE(shards(sharing, group));
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { shards(sharing, group, {.node_size = 1}); }),
                HasSubstr("share_parameters: is impossible, because every node has one rank"));
  });
}

// The job of a group, and what it prints on all ranks.
struct LeftJob {
  TrainJob job;
  std::string error;
  std::string warnings;
};

LeftJob left_job(TrainJob job, const ProcessGroupPtr& group, const WorkerEnv& env, InPlaceRecovery* recovery) {
  const JobInputs inputs;
  const nlohmann::json plan;
  std::ostringstream output;
  WorkerEnv own = env;
  own.rank = group->getRank();
  const JobContext context = {
      .env = own, .session = {}, .results = output, .progress = output, .progress_is_terminal = false};
  LeftJob left;
  left.error = testing::error_message<c10::ValueError>([&] {
    left.job = with_possible_shards({job, inputs, plan, group, context, recovery});
  });
  left.warnings = output.str();
  return left;
}

TrainJob job_with_copies(OptimizerShards over, std::optional<int64_t> node_size = std::nullopt) {
  TrainJob job = job_with(over, "int8");
  job.ddp.wire({.node_size = node_size});
  job.training.shard_copies = 2;
  return job;
}

TEST(OptimizerShardsOfAJob, AJobBeginsWithASecondNodeForSecondCopies) {
  testing::run_ranks(2, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    for (const OptimizerShards over : {OptimizerShards::kAll, OptimizerShards::kNode}) {
      InPlaceRecovery recovery;
      EXPECT_THAT(left_job(job_with_copies(over), group, {}, &recovery).error,
                  HasSubstr("shard_copies: 2 needs two nodes, but all 2 ranks are on one"));
      EXPECT_FALSE(recovery.has_placed_shards);
      WorkerEnv resumed;
      resumed.restart_count = 1;
      EXPECT_THAT(left_job(job_with_copies(over), group, resumed, nullptr).error, HasSubstr("2 needs two nodes"))
          << "no step is done";
    }
    InPlaceRecovery recovery;
    const LeftJob left = left_job(job_with_copies(OptimizerShards::kAll, 1), group, {}, &recovery);
    EXPECT_EQ(left.job.training.shard_copies, 2);
    EXPECT_EQ(left.warnings, "");
    EXPECT_TRUE(recovery.has_placed_shards);
  });
  testing::run_ranks(1, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    EXPECT_THAT(left_job(job_with(OptimizerShards::kAll), group, {}, nullptr).error,
                HasSubstr("shard_optimizer: all needs several ranks, but there is one"));
  });
}

// Rank 1 is new. It is enough that the other one has lived on.
TEST(OptimizerShardsOfAJob, OneNodeThatIsLeftHasOneCopy) {
  testing::run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    for (const OptimizerShards over : {OptimizerShards::kAll, OptimizerShards::kNode}) {
      InPlaceRecovery recovery;
      recovery.has_placed_shards = rank == 0;
      const LeftJob left = left_job(job_with_copies(over), group, {}, &recovery);
      EXPECT_EQ(left.error, "nothing was thrown");
      EXPECT_EQ(left.job.training.shard_copies, 1);
      EXPECT_EQ(left.job.training.optimizer_shards, over);
      EXPECT_EQ(left.warnings, rank == 0 ? "warning: shard_copies: all 2 ranks that are left are on one node, so each "
                                           "shard has one copy until another node joins\n"
                                         : "");
    }
    WorkerEnv restarted;
    restarted.restart_count = 1;
    TrainJob job = job_with_copies(OptimizerShards::kAll);
    job.checkpoints.resume = true;
    EXPECT_EQ(left_job(job, group, restarted, nullptr).job.training.shard_copies, 1);
  });
}

TEST(OptimizerShardsOfAJob, OneRankThatIsLeftHasNoShards) {
  testing::run_ranks(1, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    InPlaceRecovery recovery;
    recovery.has_placed_shards = true;
    TrainJob job = job_with_copies(OptimizerShards::kAll);
    job.training.parameter_format = WireFormat::kFp32;
    const LeftJob left = left_job(job, group, {}, &recovery);
    EXPECT_EQ(left.error, "nothing was thrown");
    EXPECT_EQ(left.job.training.optimizer_shards, OptimizerShards::kOff);
    training::check_training_options(left.job.training, 1);
    EXPECT_THAT(left.warnings,
                HasSubstr("warning: shard_optimizer: one rank is left, so its optimizer is not sharded"));
  });
}

// A node of two ranks is lost, and each of the others has one rank, which holds all shards.
TEST(OptimizerShardsOfAJob, NodesOfOneRankThatAreLeftHaveNoShardsWithinThem) {
  testing::run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    TrainJob sharing = job_with_copies(OptimizerShards::kAuto, 1);
    sharing.training.shard_copies = 1;
    sharing.training.share_parameters = true;
    for (const TrainJob& job : {job_with_copies(OptimizerShards::kNode, 1), sharing}) {
      InPlaceRecovery recovery;
      recovery.has_placed_shards = true;
      const LeftJob left = left_job(job, group, {}, &recovery);
      EXPECT_EQ(left.error, "nothing was thrown");
      EXPECT_EQ(left.job.training.optimizer_shards, OptimizerShards::kOff);
      EXPECT_FALSE(left.job.training.share_parameters);
      training::check_training_options(left.job.training, 2);
      EXPECT_EQ(left.warnings, rank == 0
                                   ? "warning: shard_optimizer: 2 ranks are left, but every node has one rank, so "
                                     "the optimizer is not sharded until another node joins\n"
                                   : "");
      EXPECT_EQ(left_job(job, group, {}, nullptr).job.training.share_parameters, job.training.share_parameters)
          << "it begins, so that is an error of optimizer_shards_of";
    }
  });
}

TEST(OptimizerShardsOfAJob, WithinNodesEachNodeIsACopy) {
  testing::run_ranks(4, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    const LeftJob left = left_job(job_with_copies(OptimizerShards::kNode, 2), group, {}, nullptr);
    EXPECT_EQ(left.job.training.shard_copies, 2);
    EXPECT_TRUE(shards(job_with_copies(OptimizerShards::kNode), group, {.node_size = 2}));
  });
}

// Rank 0 of two steps the [40, 40] matrix, which costs most, and rank 1 everything else.
TEST(OptimizerShardsOfAJob, MuonsPlanHasItsMatricesAndWholeShards) {
  testing::run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    TrainJob job = job_with(OptimizerShards::kOff, "int8");
    job.training.optimizer = {.kind = training::OptimizerKind::kMuon, .momentum = 0.95};
    JobInputs inputs;
    inputs.model = small_model();
    const nlohmann::json plan;
    std::ostringstream output;
    const JobContext context = {
        .env = {}, .session = {}, .results = output, .progress = output, .progress_is_terminal = false};
    const auto planned = [&](OptimizerShards over, std::optional<WireFormat> format = std::nullopt) {
      job.training.optimizer_shards = over;
      job.training.parameter_format = format;
      nlohmann::json shown = {{"parameters", kParameters}};
      add_muon_parameters(shown, job, inputs);
      add_optimizer_shards(shown, {job, inputs, plan, group, context, nullptr});
      return shown;
    };
    const nlohmann::json whole = planned(OptimizerShards::kOff);
    EXPECT_EQ(whole["muon_parameters"], 30 * 40 + 40 * 40);
    EXPECT_EQ(whole["optimizer_bytes"], 4 * 2800 + 8 * (kParameters - 2800)) << "a momentum, or two moments";
    EXPECT_EQ(planned(OptimizerShards::kNode)["optimizer_bytes"], 4 * 1600);
    const nlohmann::json exact = planned(OptimizerShards::kAll, WireFormat::kFp32);
    EXPECT_EQ(exact["optimizer_bytes"], 4 * 1600);
    EXPECT_EQ(exact["parameter_bytes_per_step_and_rank"], 4 * 1600);
    EXPECT_EQ(planned(OptimizerShards::kAll)["optimizer_bytes"], 8 * 1600) << "with masters";
    print_optimizer_shards(whole, context);
    EXPECT_EQ(output.str(),
              "muon: steps 2800 of 3290 parameters, in " + whole["newton_schulz"].get<std::string>() + "\n")
        << "rank " << rank;
  });
}

// There are kParameters parameters, and two nodes of two ranks. Rank 0 has two grains of 1024 elements within its node,
// and sends one of them to the other node. For second copies it sends the other node one more.
TEST(OptimizerShardsOfAJob, OverAllRanksThePlanHasTheBytesOfParameters) {
  testing::run_ranks(4, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    for (const std::optional<WireFormat> format : {std::optional<WireFormat>(), std::optional(WireFormat::kFp32)}) {
      TrainJob job = job_with(OptimizerShards::kAll, "int8");
      job.ddp.wire({.node_size = 2});
      job.training.parameter_format = format;
      JobInputs inputs;
      inputs.model = small_model();
      const nlohmann::json plan;
      std::ostringstream output;
      const JobContext context = {
          .env = {}, .session = {}, .results = output, .progress = output, .progress_is_terminal = false};
      nlohmann::json shown = {{"shard_copies", 2}};
      job.training.shard_copies = 2;
      add_optimizer_shards(shown, {job, inputs, plan, group, context, nullptr});
      EXPECT_EQ(shown["parameter_bytes_per_step_and_rank"], format ? 2 * 4096 : 2 * 1040);
      EXPECT_EQ(shown["optimizer_bytes"], (format ? 2 : 3) * 2 * 4096) << "two moments and masters, twice";
      job.training.shard_copies = 1;
      add_optimizer_shards(shown, {job, inputs, plan, group, context, nullptr});
      EXPECT_EQ(shown["shard_copies"], 1);
      print_optimizer_shards(shown, context);
      EXPECT_EQ(output.str(), format ? "optimizer: sharded over the 4 ranks, parameters sent as fp32, 4096 bytes per "
                                       "step and rank\n"
                                     : "optimizer: sharded over the 4 ranks, parameters sent as int8_b128, 1040 bytes "
                                       "per step and rank\n");
    }
  });
}

}  // namespace
}  // namespace narrowcast::job
