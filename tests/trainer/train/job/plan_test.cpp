#include "trainer/train/job/plan.h"
#include "trainer/train/job/train_job.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/table/hook_table.h"
#include "tests/support/error_message.h"
#include "tests/support/gpt2_weights.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/safetensors.h"
#include "trainer/train/options/plan_entries.h"

namespace narrowcast::job {
namespace {

using ::testing::HasSubstr;
using testing::small_job;
using testing::TemporaryFolder;

TEST(Plan, HoldsWhatDecidesATraining) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.ddp.hook("bf16_compress");
  const nlohmann::json plan = make_plan(job, make_inputs(job), 2);
  EXPECT_EQ(plan["version"], "1.2.3");
  EXPECT_EQ(plan["ranks"], 2);
  EXPECT_EQ(plan["model_options"]["width"], 16);
  EXPECT_EQ(plan["batch_size_per_rank"], 3);
  EXPECT_EQ(plan["tokens_per_step"], 48);
  EXPECT_EQ(plan["hook"], "bf16_compress");
  EXPECT_EQ(plan["payload_bytes_per_step_and_rank"], plan["parameters"].get<int64_t>() * 2);
  EXPECT_EQ(plan["warmup_steps"], 0);
}

// Only parameters that are trained have gradients to send.
TEST(Plan, SaysWhatTrainsAModule) {
  const TemporaryFolder folder;
  TrainJob job = testing::module_job(folder);
  job.ddp.hook("bf16_compress");
  torch::jit::Module net = testing::digit_net();
  net.attr("first").toModule().attr("weight").toTensor().set_requires_grad(false);
  net.save(job.model);
  const nlohmann::json plan = make_plan(job, make_inputs(job), 2);
  EXPECT_EQ(plan["model"], job.model);
  EXPECT_EQ(plan["model_hash"].get<std::string>().size(), 16U);
  EXPECT_EQ(plan["loss"], "cross_entropy");
  EXPECT_FALSE(plan.contains("context"));
  constexpr int64_t kFrozen = 32 * 64;
  constexpr int64_t kTrained = 32 + 2 * 32 + 10 * 32 + 10;
  EXPECT_EQ(plan["parameters"], kFrozen + kTrained);
  EXPECT_EQ(plan["payload_bytes_per_step_and_rank"], 2 * kTrained);
  testing::digit_net().save(job.model);
  EXPECT_NE(make_plan(job, make_inputs(job), 2)["model_hash"], plan["model_hash"]);
  job.data = {folder / "verse.txt"};
  EXPECT_EQ(make_plan(job, make_inputs(job), 2)["context"], 64);
  job = testing::module_job(folder, testing::kGivesLoss);
  EXPECT_EQ(make_plan(job, make_inputs(job), 2)["loss"], "the module's own");
}

// A training that resumes must begin with the same file, which may have moved.
TEST(Plan, SaysWhatATrainingBeginsWith) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  nlohmann::json plan = make_plan(job, make_inputs(job), 1);
  for (const char* const name : {"init_from", "init_from_hash", "dropout", "label_smoothing"}) {
    EXPECT_FALSE(plan.contains(name)) << name;
  }
  job.init_from = folder / "m.safetensors";
  files::save_model(job.init_from,
                    {.name = job.model, .model = make_inputs(small_job(folder)).model, .vocabulary = {}});
  job.regularization = {.dropout = 0.25, .label_smoothing = 0.125};
  plan = make_plan(job, make_inputs(job), 1);
  EXPECT_EQ(plan["init_from"], job.init_from);
  EXPECT_EQ(plan["init_from_hash"].get<std::string>().size(), 16U);
  EXPECT_EQ(plan["dropout"], 0.25);
  EXPECT_EQ(plan["label_smoothing"], 0.125);
  EXPECT_EQ(options::role_of_entry(plan, "init_from"), options::Role::kFree);
  for (const char* const name : {"init_from_hash", "dropout", "label_smoothing"}) {
    EXPECT_EQ(options::role_of_entry(plan, name), options::Role::kSetting) << name;
  }
}

TEST(Plan, SaysOfWhichContextAShorterOneIsAPart) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.model = "gpt";
  job.init_from = folder / "gpt2.safetensors";
  files::write_safetensors(job.init_from, {.tensors = testing::gpt2_weights({.vocabulary = 40}), .metadata = {}});
  job.model_options = {{"heads", 4}, {"context", 8}};
  EXPECT_FALSE(make_plan(job, make_inputs(job), 1).contains("init_from_context"));
  job.model_options["context"] = 5;
  const nlohmann::json plan = make_plan(job, make_inputs(job), 1);
  EXPECT_EQ(plan["init_from_context"], 8);
  EXPECT_EQ(plan["model_options"]["context"], 5);
  EXPECT_EQ(plan["tokens_per_step"], 6 * 5);
  EXPECT_EQ(options::role_of_entry(plan, "init_from_context"), options::Role::kFree);
}

TEST(Plan, DiffersWhereTrainingsWould) {
  const TemporaryFolder folder;
  const auto plan_with = [&](auto change) {
    TrainJob job = small_job(folder);
    change(job);
    return make_plan(job, make_inputs(job), 1);
  };
  const nlohmann::json plan = plan_with([](TrainJob&) {});
  EXPECT_EQ(plan, plan_with([](TrainJob&) {}));
  EXPECT_NE(plan, plan_with([](TrainJob& job) { job.seed = 1; }));
  EXPECT_NE(plan, plan_with([](TrainJob& job) { job.training.optimizer.weight_decay = 0; }));
  EXPECT_NE(plan, plan_with([](TrainJob& job) { job.training.learning_rate.minimum = 0; }));
  EXPECT_NE(plan, plan_with([](TrainJob& job) { job.version = "1.2.4"; }));
  // Another text of the same length under the same name.
  std::string text = testing::verse();
  text[100] = 'x';
  EXPECT_NE(plan, plan_with([&](TrainJob&) { folder.write("verse.txt", text); }));
}

// Older checkpoints lack these options. They still fit.
TEST(Plan, HoldsSomeOptionsOnlyWhereTheyHaveAnEffect) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const auto plan = [&] { return make_plan(job, make_inputs(job), 1); };
  for (const char* const name : {"decay_steps", "early_stop"}) {
    EXPECT_FALSE(plan().contains(name)) << name;
  }
  job.training.steps = 20;
  job.training.learning_rate.schedule = ScheduleKind::kWsd;
  job.training.early_stop = 3;
  EXPECT_EQ(plan()["schedule"], "wsd");
  EXPECT_EQ(plan()["decay_steps"], 4);
  EXPECT_EQ(options::role_of_entry(plan(), "decay_steps"), options::Role::kSetting);
  EXPECT_EQ(plan()["early_stop"], 3);
  EXPECT_EQ(options::role_of_entry(plan(), "early_stop"), options::Role::kFree);
}

TEST(RoleOfEntry, FollowsFromTheKindOfAnOptionAndFromTheLevels) {
  const auto role = [](const char* name, int levels = 1) {
    return options::role_of_entry({{"exchange_levels", levels}}, name);
  };
  for (const char* const name : {"levels", "node_size", "data", "keep_checkpoints", "resume_from", "auto",
                                 "least_payload_bytes_per_step_and_rank"}) {
    EXPECT_EQ(role(name), options::Role::kFree) << name;
  }
  for (const char* const name : {"link_gbit", "link_us", "ranks", "group_of_rank"}) {
    EXPECT_EQ(role(name), options::Role::kCircumstance) << name;
  }
  for (const char* const name : {"seed", "hook_format", "auto_bits", "error_feedback", "power_sgd_rank"}) {
    EXPECT_EQ(role(name), options::Role::kSetting) << name;
  }
  for (const char* const name : {"nodes", "node_of_rank"}) {
    EXPECT_EQ(role(name), options::Role::kFree) << name;
    EXPECT_EQ(role(name, 2), options::Role::kCircumstance) << name;
  }
  EXPECT_EQ(role("exchange_levels", 2), options::Role::kFree);
}

TEST(Plan, SaysWhoChoosesTheSizeOfBuckets) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const auto size = [&](int64_t ranks) { return make_plan(job, make_inputs(job), ranks).at("bucket_cap_mb"); };
  EXPECT_EQ(size(2), 25);
  job.ddp.bucket_cap_mb(3);
  EXPECT_EQ(size(2), 3);
  job.ddp.bucket_cap_mb(std::nullopt);
  EXPECT_EQ(size(2), 25) << "all gradients are less than any size";
  job.model_options["width"] = 224;
  EXPECT_EQ(size(2), "auto: decided in the first steps");
  EXPECT_EQ(size(1), 25) << "nothing is sent";
}

TEST(Plan, HoldsAHashOfTheData) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const auto hash = [&] { return make_plan(job, make_inputs(job), 1).at("data_hash").get<std::string>(); };
  const std::string whole = hash();
  EXPECT_EQ(whole.size(), 16u);
  const std::string text = testing::verse();
  job.data = {folder.write("moved.txt", text.substr(0, 1001)), folder.write("rest.txt", text.substr(1001))};
  EXPECT_EQ(hash(), whole) << "files may be moved and parted";
  // The same characters and pairs, equally often: counts cannot detect the change.
  job.data = {folder.write("swapped.txt", text.substr(500) + text.substr(0, 500))};
  EXPECT_NE(hash(), whole);
  EXPECT_EQ(hash_text(10), "000000000000000a");
}

TEST(Plan, OfAVerificationNamesTheHooks) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.verification = verification::VerificationOptions{.hooks = {"none", "noop"}};
  const nlohmann::json plan = make_plan(job, make_inputs(job), 2);
  EXPECT_EQ(plan["hooks"], nlohmann::json({"none", "noop"}));
  EXPECT_FALSE(plan.contains("steps"));
  job.ddp.hook("int4").wire({.error_feedback = true});  // Ranks that differ in it must report it.
  EXPECT_EQ(make_plan(job, make_inputs(job), 2)["error_feedback"], true);
}

TEST(Plan, SaysWhatIsUnknownUntilRanksMeet) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const JobInputs inputs = make_inputs(job);
  const auto plan_with = [&](const hooks::WireOptions& wire, int64_t ranks = 4) {
    job.ddp = DdpOptions().hook("int8").wire(wire);
    return make_plan(job, inputs, ranks);
  };
  const nlohmann::json found = plan_with({});
  EXPECT_EQ(found.at("nodes"), "unknown until ranks meet");
  EXPECT_EQ(found.at("node_memory_bytes"), "unknown until ranks meet");
  EXPECT_FALSE(found.contains("exchange_levels"));
  const nlohmann::json told = plan_with({.node_size = 2});
  EXPECT_EQ(told.at("nodes"), "2 x 2");
  EXPECT_EQ(told.at("exchange_levels"), 2);
  // Two ranks have two buckets each, and all gradients are one bucket.
  const int64_t all = 4 * told.at("parameters").get<int64_t>();
  EXPECT_EQ(told.at("node_memory_bytes"), 2 * 2 * all);
  for (const auto& flat : {plan_with({.levels = hooks::Levels::kOne}), plan_with({.node_size = 1})}) {
    EXPECT_EQ(flat.at("exchange_levels"), 1);
    EXPECT_FALSE(flat.contains("node_memory_bytes"));
  }
  EXPECT_FALSE(plan_with({}, 1).contains("nodes")) << "there is nobody to meet";
}

// Ranks of one node send to each other through shared memory.
TEST(Plan, CountsNoBytesBetweenRanksOfOneNode) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const JobInputs inputs = make_inputs(job);
  const auto bytes_with = [&](const DdpOptions& ddp, std::optional<int64_t> ranks_per_node) {
    job.ddp = ddp;
    return make_plan(job, inputs, 4, ranks_per_node).at("payload_bytes_per_step_and_rank").get<int64_t>();
  };
  for (const char* const hook : {"int8", "var5", "fp32", "power_sgd"}) {
    const DdpOptions ddp = DdpOptions().hook(hook);
    EXPECT_EQ(bytes_with(ddp, 4), 0) << hook;
    EXPECT_GT(bytes_with(ddp, 2), 0) << hook;
    EXPECT_LT(bytes_with(ddp, 2), bytes_with(ddp, 1)) << hook;
    EXPECT_EQ(bytes_with(ddp, 1), bytes_with(ddp, std::nullopt)) << hook;
    EXPECT_GT(bytes_with(DdpOptions().hook(hook).wire({.levels = hooks::Levels::kOne}), 4), 0) << hook;
    EXPECT_GT(bytes_with(DdpOptions().hook(hook).wire({.node_size = 1}), 4), 0) << hook;
  }
  EXPECT_EQ(bytes_with(DdpOptions().hook("allreduce"), 4), bytes_with(DdpOptions().hook("allreduce"), 1))
      << "it sends the same wherever ranks are";
  job.ddp = DdpOptions().hook("int8");
  EXPECT_EQ(make_plan(job, inputs, 4, 2).at("nodes"), "2 x 2");
  EXPECT_EQ(make_plan(job, inputs, 4, 2).at("exchange_levels"), 2);
}

TEST(Plan, CountsTheMemoryOfExemptGradients) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const JobInputs inputs = make_inputs(job);
  const auto memory_with = [&](bool exempt) {
    job.ddp = DdpOptions().hook("int8").wire({.exempt_one_dimensional = exempt, .node_size = 2});
    return make_plan(job, inputs, 2).at("node_memory_bytes").get<int64_t>();
  };
  int64_t one_dimensional = 0;
  for (const at::Tensor& parameter : inputs.model->parameters()) {
    one_dimensional += parameter.dim() < 2 ? parameter.numel() : 0;
  }
  ASSERT_GT(one_dimensional, 0);
  EXPECT_EQ(memory_with(true), memory_with(false) + 2 * 2 * 4 * one_dimensional);
}

TEST(Plan, NeedsConsentToUnequalSharesOfBatchNorm) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  JobInputs inputs = make_inputs(job);
  inputs.model->register_buffer("running_mean", at::zeros({2}));
  EXPECT_NO_THROW(make_plan(job, inputs, 2));
  job.training.shares = data::parse_shares("auto");
  EXPECT_THAT(testing::error_message<c10::ValueError>([&] { make_plan(job, inputs, 2); }),
              HasSubstr("shares: auto would change the statistics of batch norm"));
  job.training.shares_with_batch_norm = true;
  EXPECT_EQ(make_plan(job, inputs, 2).at("shares_with_batch_norm"), true);
}

TEST(ComparedValues, AreOnePerKey) {
  const std::vector<NamedValue> values = options::compared_values({{"a", 1.5}, {"b", "text"}});
  ASSERT_EQ(values.size(), 2U);
  EXPECT_EQ(values[0].name, "a");
  EXPECT_EQ(values[0].value, "1.5");
  EXPECT_EQ(values[1].value, "text");
}

// The node size is compared, because it is an option and decides what is sent.
TEST(ComparedValues, AreNothingThatFollowsFromOthers) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.ddp = DdpOptions().hook("post_local_sgd").local({.group_size = 2});
  job.outer = OuterOptions().sync_every(2).wire({.format = WireFormat::kFp32, .node_size = 2});
  const nlohmann::json plan = make_plan(job, make_inputs(job), 2);
  const std::vector<NamedValue> values = options::compared_values(plan);
  const auto has = [&](const char* name) {
    return std::ranges::any_of(values, [&](const NamedValue& value) { return value.name == name; });
  };
  for (const char* const name : {"payload_bytes_per_step_and_rank", "payload_bytes_per_exchange_and_rank"}) {
    EXPECT_TRUE(plan.contains(name) && !has(name)) << name;
  }
  EXPECT_TRUE(has("node_size"));
  for (const char* const name : {"nodes", "node_of_rank", "exchange_levels", "node_memory_bytes"}) {
    EXPECT_TRUE(plan.contains(name) && !has(name)) << name << " follows from it";
  }
  EXPECT_EQ(values.size() + 6, plan.size());
}

TEST(ComparedValues, OfOtherDataDifferFirstInTheirHash) {
  const TemporaryFolder folder;
  const TrainJob job = small_job(folder);
  const auto values = [&] { return options::compared_values(make_plan(job, make_inputs(job), 2)); };
  const std::vector<NamedValue> of_one = values();
  folder.write("verse.txt", testing::verse() + "and of another one");
  const std::vector<NamedValue> of_other = values();
  const auto [first, other] =
      std::mismatch(of_one.begin(), of_one.end(), of_other.begin(), of_other.end(),
                    [](const NamedValue& a, const NamedValue& b) { return a.name == b.name && a.value == b.value; });
  ASSERT_NE(first, of_one.end());
  EXPECT_EQ(first->name, "data_hash");
}

TEST(Plan, HoldsTheBytesOfEveryHookWithItsOptions) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const JobInputs inputs = make_inputs(job);
  const auto bytes_with = [&](const DdpOptions& ddp) {
    job.ddp = ddp;
    const nlohmann::json plan = make_plan(job, inputs, 2);
    const bool is_least = hooks::hook_row(ddp.hook()).compresses_buckets();
    EXPECT_EQ(plan.contains("payload_bytes_per_step_and_rank"), !is_least) << ddp.hook();
    return plan.at(is_least ? "least_payload_bytes_per_step_and_rank" : "payload_bytes_per_step_and_rank")
        .get<int64_t>();
  };
  const int64_t parameters = make_plan(job, inputs, 2).at("parameters");
  for (const std::string& hook : hooks::comm_hook_names()) {
    // Without known nodes, each rank is a group.
    EXPECT_EQ(bytes_with(DdpOptions().hook(hook)) > 0, hook != "noop" && hook != "post_local_sgd") << hook;
  }
  EXPECT_EQ(bytes_with(DdpOptions().hook("none")), 4 * parameters);
  EXPECT_EQ(bytes_with(DdpOptions().hook("quantize_per_channel").channel_size(1)), 9 * parameters);
  const auto fp32 = DdpOptions().hook("quantized_allreduce").wire({.format = WireFormat::kFp32});
  EXPECT_EQ(bytes_with(fp32), 4 * parameters);
  const auto exempt = DdpOptions().hook("int4").wire({.exempt_one_dimensional = true});
  EXPECT_GT(bytes_with(exempt), bytes_with(DdpOptions().hook("int4")));
  EXPECT_THROW(bytes_with(DdpOptions().hook("no_such_hook")), c10::ValueError);
}

TEST(Plan, HoldsTheBytesOfOuterExchanges) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const JobInputs inputs = make_inputs(job);
  job.ddp = DdpOptions().hook("post_local_sgd").local({.group_size = 2});
  job.outer = OuterOptions().sync_every(100).wire({.format = WireFormat::kInt4B32, .error_feedback = true});
  const nlohmann::json plan = make_plan(job, inputs, 4);
  const int64_t parameters = plan.at("parameters");
  EXPECT_EQ(plan["local_group"], 2);
  EXPECT_EQ(plan["outer_optimizer"], "average");
  EXPECT_EQ(plan["overlap_steps"], 0);
  const int64_t exchange = hooks::ring_all_reduce_bytes(encoded_size(parameters, WireFormat::kInt4B32), 4);
  EXPECT_EQ(plan["payload_bytes_per_exchange_and_rank"], exchange);
  EXPECT_EQ(plan["payload_bytes_per_step_and_rank"], 4 * parameters + (exchange + 99) / 100);
  job.ddp.local({.group_size = 1});
  const int64_t alone = make_plan(job, inputs, 4)["payload_bytes_per_step_and_rank"];
  EXPECT_LE(400 * alone, hooks::ring_all_reduce_bytes(4 * parameters, 4)) << "a 400th of float32's gradients";
  // Groups are nodes, independent of --levels.
  job.ddp.local({});
  job.outer->wire({.format = WireFormat::kInt4B32, .error_feedback = true, .levels = hooks::Levels::kOne});
  EXPECT_EQ(make_plan(job, inputs, 4, 2)["payload_bytes_per_step_and_rank"], 4 * parameters + (exchange + 99) / 100);
  EXPECT_EQ(make_plan(job, inputs, 4, 1)["payload_bytes_per_step_and_rank"], alone);
  TrainJob timed = job;
  timed.outer = OuterOptions().sync_seconds(30).wire(job.outer->wire());
  const nlohmann::json of_time = make_plan(timed, inputs, 4);
  EXPECT_EQ(of_time["sync_seconds"], 30);
  EXPECT_FALSE(of_time.contains("sync_every"));
  EXPECT_EQ(of_time["payload_bytes_per_exchange_and_rank"], exchange);
  EXPECT_EQ(of_time["payload_bytes_per_step_and_rank"], "unknown: clocks decide how many steps a round has");
  EXPECT_FALSE(plan.contains("sync_seconds"));
  TrainJob of_quorum = job;
  of_quorum.ddp.local({.group_size = 2});
  of_quorum.outer = OuterOptions().sync_every(100).quorum(1);
  EXPECT_EQ(make_plan(of_quorum, inputs, 4)["payload_bytes_per_exchange_and_rank"], 128 + 4 * parameters);
  job.outer->fragments(4);
  const nlohmann::json streamed = make_plan(job, inputs, 4);
  EXPECT_NEAR(streamed["payload_bytes_per_exchange_and_rank"], exchange / 4, exchange / 40);
  EXPECT_NEAR(streamed["payload_bytes_per_step_and_rank"], alone, alone / 10);
}

}  // namespace
}  // namespace narrowcast::job
