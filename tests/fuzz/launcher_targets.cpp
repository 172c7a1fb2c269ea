// The texts of launchers in a store, and the texts that they and batch systems get.
#include <c10/util/Exception.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>
#include <vector>

#include "tests/fuzz/target.h"
#include "tests/support/job_secret.h"
#include "trainer/base/environment/slurm.h"
#include "trainer/base/files/json.h"
#include "trainer/base/network/places.h"
#include "trainer/base/network/store_file.h"
#include "trainer/base/program/failure.h"
#include "trainer/ddp/recovery/elastic_run.h"
#include "trainer/ddp/recovery/held_states.h"
#include "trainer/ddp/recovery/new_ranks.h"
#include "trainer/ddp/rendezvous/gloo_listener.h"
#include "trainer/ddp/shards/pieces.h"
#include "trainer/launcher/group/group.h"
#include "trainer/launcher/job/launch_plan.h"
#include "trainer/launcher/posix/last_lines.h"
#include "trainer/launcher/posix/process_runner.h"
#include "trainer/launcher/rendezvous/rendezvous_options.h"
#include "trainer/launcher/rendezvous/store_rendezvous.h"
#include "trainer/launcher/store/sealed_entries.h"
#include "trainer/launcher/store/worker_entries.h"
#include "trainer/train/training/recovery.h"

namespace narrowcast::fuzz {
namespace {

using launcher::Decision;
using launcher::FailureRecord;
using launcher::GroupEnd;

// A target that reads text.
template <class Read>
Target of_text(std::string name, const Read& read, std::vector<std::string> seeds) {
  return {std::move(name), [read](std::string_view input) { read(std::string(input)); },
          [seeds = std::move(seeds)] { return seeds; }};
}

// A text that is accepted can be described, compared, and written again.
void read_node(const std::string& text) {
  const launcher::NodeDescription node = launcher::parse_node(text);
  launcher::name_of(node);
  launcher::difference(node, {});
  launcher::parse_node(launcher::to_text(node));
}

void read_report(const std::string& text) {
  const launcher::RoundReport report = launcher::parse_report(text);
  launcher::parse_report(launcher::to_text(report));
  launcher::end_of_report(launcher::bounded(report.report)).exit_code();
}

void read_decision(const std::string& text) {
  const Decision decision = launcher::parse_decision(text);
  launcher::parse_decision(launcher::to_text(decision));
  for (const int64_t ticket : {1, 2, 3}) {
    launcher::NodeState state;
    state.ticket = ticket;
    const launcher::Directive directive = launcher::directive_for(decision, state);
    if (directive.end) directive.end->exit_code();
  }
}

FailureRecord some_failure() {
  FailureRecord failure;
  failure.rank = 2;
  failure.ending.exit_code = 3;
  failure.message = "why";
  failure.last_lines = {"line"};
  return failure;
}

std::vector<std::string> decisions() {
  Decision forming;
  forming.note = "waits for 1 more node";
  Decision running;
  running.phase = Decision::Phase::kRunning;
  running.round = 2;
  running.run_id = "job";
  running.members = {{.ticket = 1, .name = "node 0 (alpha)", .nproc = 2, .role = "default"},
                     {.ticket = 3, .name = "node 1 (beta)", .nproc = 1, .role = "default", .is_new = true}};
  Decision over = running;
  over.phase = Decision::Phase::kOver;
  over.end = GroupEnd{.cause = GroupEnd::Cause::kFailed, .failure = some_failure()};
  over.spares = {6, 7};
  over.evicted[2] = {.cause = GroupEnd::Cause::kAborted, .text = "differs", .code = 2};
  return {launcher::to_text(forming), launcher::to_text(running), launcher::to_text(over)};
}

// A launcher that has lost the host.
launcher::NodeDescription some_node() {
  launcher::NodeDescription node{.host = "alpha", .pid = 7};
  node.known = {.change = {.round = 2, .changes = 5}, .losses = 3, .members = {4, 1}, .met = {4}, .starts = 7};
  return node;
}

std::string failed_report() {
  launcher::RoundReport report;
  report.round = 3;
  report.report.end = launcher::NodeReport::End::kFailed;
  report.report.failure = some_failure();
  return launcher::to_text(report);
}

launcher::SealedEntries sealed_entries() {
  static const launcher::JobSeal seal{.secret = testing::secret_of("what only launchers know"), .job = "job"};
  return {c10::make_intrusive<c10d::HashStore>(), seal};
}

// A sealed entry as in the store. It is always the same one: a fuzzer that finds another proof has found the secret.
std::string sealed_entry() {
  launcher::SealedEntries entries = sealed_entries();
  entries.set("key", "text");
  return entries.store().get_to_str("key");
}

void read_sealed_entry(const std::string& value) {
  const std::optional<std::string> text = sealed_entries().open("key", value);
  TORCH_INTERNAL_ASSERT(text.value_or("text") == "text", "a proof without the secret");
}

// Reads the entry of a rank about another one that is silent.
void read_silent_rank(const std::string& text) { TORCH_INTERNAL_ASSERT(launcher::parse_starts(text).value_or(0) >= 0); }

// Reads which ranks the nodes have. All that is accepted is written as it was read, and ranks count from 0.
void read_places(const std::string& text) {
  const rendezvous::Places places = rendezvous::parse_places(text);
  TORCH_INTERNAL_ASSERT(rendezvous::parse_places(rendezvous::to_text(places)) == places);
  for (const rendezvous::NodeRanks& node : places.nodes) {
    const int64_t last = places.first_rank(node.node).value() + node.ranks - 1;
    TORCH_INTERNAL_ASSERT(0 <= last && last < places.world_size());
  }
  for (const rendezvous::NodeRanks& node : places.starting) {
    TORCH_INTERNAL_ASSERT(node.ranks > 0 && !places.first_rank(node.node).has_value());
  }
}

// The rank that ended last.
void read_ended_rank(const std::string& text) {
  if (const std::optional<rendezvous::RankOfNode> rank = rendezvous::parse_rank(text)) {
    TORCH_INTERNAL_ASSERT(rank->node >= 0 && rank->rank_on_node >= 0);
    TORCH_INTERNAL_ASSERT(rendezvous::parse_rank(rendezvous::to_text(*rank)) == rank);
  }
}

// The file with the store's address. What is accepted is written again.
void read_store_file(const std::string& path) {
  if (const std::optional<network::StoreAddress> place = network::read_store_file(path)) {
    network::write_store_file(path, *place);
    TORCH_INTERNAL_ASSERT(network::read_store_file(path) == place);
  }
}

// The ranges of tensors that another rank tells that it holds.
void read_holding(const std::string& text) {
  const pieces::Holding holding = pieces::read_holding(files::parse_json(text, "rank 1"), "rank 1");
  TORCH_INTERNAL_ASSERT(!pieces::first_gap({&holding, &holding}) == !pieces::first_gap({&holding}));
  for (const pieces::Range& range : pieces::read_holding(pieces::to_json(holding), "rank 1").ranges) {
    TORCH_INTERNAL_ASSERT(0 <= range.begin && range.begin <= range.end, pieces::describe(range));
  }
}

std::vector<std::string> holdings() {
  const pieces::Holding whole = {.numels = {{"weight", 12}, {"bias", 3}},
                                 .ranges = {{"weight", 0, 12}, {"bias", 0, 3}}};
  const pieces::Holding part = {.numels = {{"weight", 12}}, .ranges = {{"weight", 2, 5}}};
  return {pieces::to_json(whole).dump(), pieces::to_json(part).dump()};
}

// The texts of another rank about its states and their tensors.
void read_rank_state(const std::string& text) {
  const recovery::HeldStates read = recovery::parse_held_states(text, 1);
  TORCH_INTERNAL_ASSERT(!read.is_lost() || read.held.empty());
}

void read_inventory(const std::string& text) {
  for (const size_t sources : {1, 3}) {
    for (const auto& part : recovery::read_inventory(text, sources).parts) {
      TORCH_INTERNAL_ASSERT(part.source < sources && part.entry.begin <= part.entry.end);
    }
  }
}

// The values of a recovery, of ElasticGroup.
void read_elastic_point(const std::string& text) {
  recovery::SharedState shared;
  shared.state.values = text;
  recovery::ElasticRun::read_point(shared, 3);
}

// Where another rank's Gloo listens.
void read_gloo_address(std::string_view bytes) {
  const rendezvous::GlooAddress address = rendezvous::GlooAddress::parse({bytes.begin(), bytes.end()});
  TORCH_INTERNAL_ASSERT(address.numbers.size() * sizeof(int64_t) <= bytes.size());
}

// Lists that a writer of checkpoints gets from the ranks.
void read_list_of_rank(const std::string& text) {
  files::parse_list({.text = text, .rank = 1, .what = "the files that it wrote"}, [](const nlohmann::json& entry) {
    return entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string();
  });
}

}  // namespace

std::vector<Target> launcher_targets() {
  return {
      of_text("store_node", read_node, {launcher::to_text(some_node())}),
      of_text("store_report", read_report, {launcher::to_text(launcher::RoundReport{.round = 1}), failed_report()}),
      of_text("store_decision", read_decision, decisions()),
      of_text("store_silent_rank", read_silent_rank, {"0", "12"}),
      of_text("store_places", read_places, {"0 1:1", "2 1:4,3:4", "2 1:4,3:4 5:1,7:2"}),
      of_text("store_ended_rank", read_ended_rank, {"0/3", "7/0"}),
      {"store_file", as_file("store", read_store_file),
       [] {
         return std::vector<std::string>{"10.0.0.2:41207\n", "[::1]:7\n"};
       }},
      of_text("holding", read_holding, holdings()),
      of_text("rank_state", read_rank_state,
              {R"({"why_unusable":"","states":[[7,)" + holdings()[0] + R"(],[8,)" + holdings()[1] + "]]}",
               R"({"why_unusable":"the optimizer is sharded","states":[]})"}),
      of_text("rank_inventory", read_inventory,
              {R"(20 {"__metadata__":{"values":"{}"},"common.w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
               R"("own.n":{"dtype":"I32","shape":[],"data_offsets":[16,20]}})"}),
      of_text("rank_values", [](const std::string& text) { recovery::parse_named_values(text, "the plan of rank 1"); },
              {R"([["seed","1"],["hook","int8"]])"}),
      of_text("elastic_values", read_elastic_point,
              {R"({"step":41,"is_over":false,"buckets":[["w","b"],["x"]],"reductions":7})"}),
      of_text(
          "training_values",
          [](const std::string& text) {
            training::RecoveredState recovered;
            training::read_values(text, recovered);
          },
          {R"({"step":41,"is_reported":true,"world_size":3,"is_sharded":true,"has_values":false,"training":{"a":1}})"}),
      {"gloo_address", read_gloo_address,
       [] { return std::vector<std::string>{std::string(8, '\0') + "\x88" + std::string(7 + 136 + 16, '\0')}; }},
      of_text("store_sealed", read_sealed_entry, {sealed_entry()}),
      {"secret_file",
       as_file("secret",
               [](const std::string& path) {
                 std::filesystem::permissions(path,
                                              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
                 program::JobSecret::read("secret_file", path).mac("text");
               }),
       [] {
         return std::vector<std::string>{"sixteen bytes it\n", std::string(4096, 'x')};
       }},
      of_text("list_of_rank", read_list_of_rank, {R"([["hook","int8"],["seed","0"]])"}),
      of_text("nnodes", [](const std::string& text) { launcher::parse_nnodes(text); }, {"2", "1:4"}),
      of_text("endpoint", [](const std::string& text) { launcher::parse_endpoint(text, 29400); },
              {"host:29500", "[::1]:7", "host"}),
      of_text("rdzv_conf",
              [](const std::string& text) {
                for (const char* const backend : {"static", "c10d"}) {
                  try {
                    launcher::parse_rendezvous_options(text, backend);
                  } catch (const c10::ValueError&) {
                    if (std::string(backend) == "c10d") throw;
                  }
                }
              },
              {"join_timeout=600,last_call_timeout=30.5,is_host=1", "keep_alive_interval=5,keep_alive_max_attempt=3"}),
      of_text("local_ranks", [](const std::string& text) { launcher::parse_local_ranks("tee", text); }, {"0,2"}),
      of_text("signals", [](const std::string& text) { launcher::parse_handled_signals("signals", text); },
              {"SIGTERM,SIGINT"}),
      of_text("slurm_hosts", [](const std::string& text) { slurm::expand_host_list(text); },
              {"a[01-03,7],b", "c[1-2]d[3]"}),
      of_text("slurm_counts", [](const std::string& text) { slurm::expand_counts(text); }, {"2(x3),1"}),
      {"last_lines", as_file("stderr.log", [](const std::string& path) { launcher::read_last_lines(path); }),
       [] {
         return std::vector<std::string>{"line\nlast\rover\n", std::string(100, 'x')};
       }},
  };
}

}  // namespace narrowcast::fuzz
