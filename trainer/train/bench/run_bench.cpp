#include "trainer/train/bench/run_bench.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <narrowcast/hooks.h>
#include "hooks/row/hook_options.h"
#include "hooks/row/levels.h"
#include "hooks/table/hook_table.h"
#include "ops/comm/connections/group/connections.h"
#include "ops/comm/link/link.h"
#include "ops/comm/node/node_layout.h"
#include "trainer/base/network/job_network.h"
#include "trainer/base/program/failure.h"
#include "trainer/ddp/reducer/bucket_size.h"
#include "trainer/train/bench/kernel_rates.h"
#include "trainer/train/bench/measurements.h"
#include "trainer/train/bench/recommendation.h"
#include "trainer/train/bench/results.h"
#include "trainer/train/bench/tables.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/job/peer_proof.h"
#include "trainer/train/job/train_job.h"
#include "trainer/train/optimization/device.h"
#include "trainer/train/reporting/report.h"

namespace narrowcast::bench {
namespace {

using hooks::OptionKind;

constexpr int64_t kMostBuckets = 256;
constexpr int64_t kMostIterations = 1'000'000;

template <class Values>
bool contains(const Values& values, const typename Values::value_type& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

void check_hooks(const std::vector<std::string>& hooks) {
  const std::vector<std::string> known = measurable_hooks();
  for (auto hook = hooks.begin(); hook != hooks.end(); ++hook) {
    TORCH_CHECK_VALUE(contains(known, *hook), "hooks: '", *hook,
                      "' cannot be measured; known: ", absl::StrJoin(known, ", "));
    TORCH_CHECK_VALUE(std::find(hooks.begin(), hook, *hook) == hook, "hooks: '", *hook, "' is named twice");
  }
}

template <class Value>
void check_list(const char* name, const std::vector<Value>& values, Value least, Value most) {
  TORCH_CHECK_VALUE(!values.empty(), name, ": must name at least one value");
  for (auto value = values.begin(); value != values.end(); ++value) {
    TORCH_CHECK_VALUE(*value >= least && *value <= most, name, ": must be in ", least, "..", most, ", but is ", *value);
    TORCH_CHECK_VALUE(std::find(values.begin(), value, *value) == value, name, ": ", *value, " is named twice");
  }
}

// Whether to measure the hook by default. Excluded hooks:
//   - Hooks that take a format: the formats' short names are measured.
//   - Hooks that choose another hook: it is measured under its own name, and no number of iterations can distinguish a
//     hook from itself.
//   - Hooks that approximate: their means differ from the step's, so time alone cannot justify them.
bool is_worth_measuring(const std::string& hook) {
  const hooks::HookRow& row = hooks::hook_row(hook);
  return averages(hook) && !row.takes(OptionKind::kFormat) && !row.chooses && !row.approximates();
}

// An option that none of the measured hooks takes is an error. The link's rate is always allowed: shares of it are
// reported.
void check_wire(const BenchOptions& options) {
  hooks::WireOptions wire = options.wire;
  wire.link_gbit.reset();
  const std::vector<std::string> names = hooks_to_measure(options);
  for (const OptionKind kind : {OptionKind::kRounding, OptionKind::kLevels}) {
    const auto found = std::ranges::find_if(names, [&](const auto& name) { return hooks::hook_row(name).takes(kind); });
    if (found != names.end()) {
      return hooks::check_comm_hook(*found, wire);
    }
  }
  hooks::check_comm_hook(kReference, wire);
}

// Different values may still round to the same number of elements.
void check_bucket_mib(const BenchOptions& options) {
  check_list("bucket_mib", options.bucket_mib, sizeof(float) / kBytesOfMib,
             static_cast<double>(kMostBucketBytes) / kBytesOfMib);
  const std::vector<int64_t> sizes = bucket_sizes(options);
  for (auto size = sizes.begin(); size != sizes.end(); ++size) {
    TORCH_CHECK_VALUE(std::find(sizes.begin(), size, *size) == size, "bucket_mib: two values are the same size of ",
                      *size, " bytes");
  }
}

// The state that all steps of a run share.
class Run {
 public:
  Run(const BenchOptions& options, const job::JobContext& context, const ProcessGroupPtr& group, at::Device device)
      : options_(options), context_(context), group_(group), device_(device) {
    results_.ranks = group->getSize();
    results_.network = network::describe_network(process_environment());
    results_.device = device.type();
    results_.given_gbit = options.wire.link_gbit;
  }

  BenchResults measure() {
    const int64_t measured_before = collectives::measuring_bytes_sent(group_);
    find_nodes();
    if (options_.link) {
      measure_link();
    }
    if (options_.kernels) {
      measure_kernels();
    }
    for (const int64_t bytes : bucket_sizes(options_)) {
      if (options_.check) {
        check_exactness(bytes);
      }
      for (const int64_t buckets : options_.buckets) {
        measure_hooks(bytes, buckets);
      }
    }
    results_.measuring_bytes_sent = collectives::measuring_bytes_sent(group_) - measured_before;
    results_.payload_bytes_sent += results_.measuring_bytes_sent;
    return std::move(results_);
  }

 private:
  // Finds nodes as hooks of wire formats do. With one level those hooks do not look for nodes, so this is done
  // separately.
  void find_nodes() {
    const auto found = hooks::find_hook_nodes({.process_group = group_, .wire = options_.wire});
    results_.levels = found->layout.has_levels() ? 2 : 1;
    results_.why_one_level = found->why_flat;
    if (options_.wire.connections && device_.is_cpu()) results_.connections = connections::connections_text(group_);
    const bool asked = options_.wire.levels != hooks::Levels::kOne;
    const node::NodeLayout layout = asked ? found->neighbours : hooks::find_hook_nodes({group_})->neighbours;
    nodes_ = layout.node_of_rank();
    for (int64_t node = 0; node < layout.nodes(); ++node) {
      results_.ranks_per_node.push_back(std::ssize(layout.ranks_of(node)));
    }
    if (!found->why_flat.empty()) {
      announce("every rank as a node, since ranks of a node cannot share memory (" + found->why_flat + ")");
    }
  }

  void measure_link() {
    announce("the link");
    results_.link = bench::measure_link(group_, device_.is_cpu() ? kLinkEffort : kGpuLinkEffort, device_);
    results_.payload_bytes_sent += results_.link->payload_bytes_sent;
  }

  // Runs on rank 0 alone, which has the processor or the GPU to itself.
  void measure_kernels() {
    announce("the kernels");
    if (context_.env.rank == 0) {
      results_.kernels = bench::measure_kernels({.elements = KernelOptions::elements_on(device_), .device = device_});
    }
    barrier(group_, "waiting for rank 0 to measure the kernels");
  }

  void check_exactness(int64_t bytes) {
    announce(absl::StrCat("exactness, ", bytes, " bytes"));
    const Exactness measured =
        measure_exactness(group_, hooks_to_measure(options_), elements_of(bytes), options_.wire, device_);
    results_.exactness.insert(results_.exactness.end(), measured.hooks.begin(), measured.hooks.end());
    results_.payload_bytes_sent += measured.payload_bytes_sent;
  }

  void measure_hooks(int64_t bytes, int64_t buckets) {
    announce(absl::StrCat("hooks, ", buckets, " x ", bytes, " bytes"));
    const HookTimes measured = bench::measure_hooks(group_, {.hooks = hooks_to_measure(options_),
                                                             .numel = elements_of(bytes),
                                                             .buckets = buckets,
                                                             .warmup_iterations = options_.warmup_iterations,
                                                             .iterations = options_.iterations,
                                                             .nodes = nodes_,
                                                             .wire = options_.wire,
                                                             .device = device_});
    results_.hooks.insert(results_.hooks.end(), measured.times.begin(), measured.times.end());
    results_.payload_bytes_sent += measured.payload_bytes_sent;
  }

  void announce(const std::string& what) const {
    if (context_.env.rank == 0) {
      context_.progress << "measuring " << what << std::endl;
    }
  }

  const BenchOptions& options_;
  const job::JobContext& context_;
  const ProcessGroupPtr& group_;
  const at::Device device_;
  std::vector<int64_t> nodes_;  // by rank
  BenchResults results_;
};

void print(const BenchResults& results, std::ostream& out) {
  out << one_node_text(results) << ranks_text(results);
  if (results.link) {
    out << link_text(*results.link);
  }
  if (results.kernels) {
    out << "\n" << kernel_table(*results.kernels);
  }
  out << "\n" << hook_table(results) << decision_lines(results);
  if (!results.exactness.empty()) {
    out << "\n" << exactness_table(results);
  }
  const std::string fits = fit_table(results);
  out << (fits.empty() ? "" : "\n") << fits << "\n" << recommendation_text(recommend(results)) << std::flush;
}

// Writes the requested files.
void write_files(const BenchOptions& options, const BenchResults& results, files::AtomicFile* json_file) {
  if (json_file != nullptr) {
    json_file->write(to_json(options, results).dump(1) + "\n");
    json_file->commit();
  }
  if (options.report_file.empty()) {
    return;
  }
  const nlohmann::json measured = {{"name", ranks_text(results)}, {"results", to_json(options, results)}};
  reporting::write_report(options.report_file, {{"title", "narrowcast-bench " + options.version},
                                                {"benches", nlohmann::json::array({measured})}});
}

}  // namespace

std::vector<std::string> measurable_hooks() {
  std::vector<std::string> names;
  for (const hooks::HookRow& row : hooks::hook_rows()) {
    if (row.make) {
      names.push_back(row.name);
    }
  }
  return names;
}

std::vector<std::string> hooks_to_measure(const BenchOptions& options) {
  std::vector<std::string> hooks = options.hooks;
  if (hooks.empty()) {
    hooks = measurable_hooks();
    std::erase_if(hooks, [](const std::string& hook) { return !is_worth_measuring(hook); });
  }
  hooks.erase(std::remove(hooks.begin(), hooks.end(), kReference), hooks.end());
  hooks.insert(hooks.begin(), kReference);
  return hooks;
}

std::vector<int64_t> bucket_sizes(const BenchOptions& options) {
  if (options.sizes) {
    return sizes_of(*options.sizes);
  }
  std::vector<int64_t> sizes;
  for (const double mib : options.bucket_mib) {
    const int64_t elements = std::llround(mib * kBytesOfMib / sizeof(float));
    sizes.push_back(elements * static_cast<int64_t>(sizeof(float)));
  }
  return sizes;
}

void check_options(const BenchOptions& options, int64_t world_size) {
  check_hooks(options.hooks);
  check_wire(options);
  if (options.sizes) {
    check_size_range(*options.sizes);
  } else {
    check_bucket_mib(options);
  }
  check_list("buckets", options.buckets, int64_t{1}, kMostBuckets);
  check_list("iterations", std::vector<int64_t>{options.iterations}, int64_t{1}, kMostIterations);
  check_list("warmup_iterations", std::vector<int64_t>{options.warmup_iterations}, int64_t{0}, kMostIterations);
  hooks::check_link(options.wire);
  if (!options.report_file.empty()) {
    reporting::check_page_name(options.report_file);
  }
  TORCH_CHECK_VALUE(world_size >= 2, "needs at least 2 ranks, but this is a single process; ",
                    "start it with narrowcast-run --nproc_per_node=N or another launcher");
}

std::vector<NamedValue> agreed_values(const BenchOptions& options) {
  std::vector<NamedValue> values = {{"version", options.version},
                                    {"hooks", absl::StrJoin(hooks_to_measure(options), ",")},
                                    {"bucket_bytes", absl::StrJoin(bucket_sizes(options), ",")},
                                    {"buckets", absl::StrJoin(options.buckets, ",")},
                                    {"iterations", absl::StrCat(options.iterations)},
                                    {"warmup_iterations", absl::StrCat(options.warmup_iterations)},
                                    {"link", options.link ? "true" : "false"},
                                    {"kernels", options.kernels ? "true" : "false"},
                                    {"check", options.check ? "true" : "false"}};
  for (const hooks::NamedOption& option : hooks::named_options({nullptr, options.wire})) {
    if (option.kind == OptionKind::kLevels || option.kind == OptionKind::kLink ||
        option.kind == OptionKind::kConnections) {
      values.push_back({option.name, hooks::text_of(option.value)});
    }
  }
  return values;
}

std::vector<double> parse_numbers(const std::string& flag, const std::vector<std::string>& words) {
  std::vector<double> numbers(words.size());
  for (size_t i = 0; i < words.size(); ++i) {
    TORCH_CHECK_VALUE(absl::SimpleAtod(words[i], &numbers[i]), flag, ": '", words[i], "' is not a number");
  }
  return numbers;
}

std::vector<int64_t> parse_integers(const std::string& flag, const std::vector<std::string>& words) {
  std::vector<int64_t> integers(words.size());
  for (size_t i = 0; i < words.size(); ++i) {
    TORCH_CHECK_VALUE(absl::SimpleAtoi(words[i], &integers[i]), flag, ": '", words[i], "' is not an integer");
  }
  return integers;
}

int run_bench(const BenchOptions& given, const job::JobContext& context) {
  const at::Device device = training::choose_device(given.device, context.env);
  job::set_threads(given.threads, context);
  check_options(given, context.env.world_size);
  BenchOptions options = given;
  options.hooks = hooks_to_measure(given);
  const bool is_rank_0 = context.env.rank == 0;
  // Opened first, so that an unwritable path fails before the measurements.
  const auto json_file =
      is_rank_0 && !options.json_file.empty() ? std::make_unique<files::AtomicFile>(options.json_file) : nullptr;
  if (is_rank_0 && !options.report_file.empty()) {
    files::check_replaceable("report", options.report_file);
  }
  training::use_device(device);
  const ProcessGroupScope scope(context.env, job::group_options_on(device, options.group, context));
  const BenchResults results = scope.run([&] {
    job::prove_to_peers(scope.group(), process_environment());
    check_equal_on_all_ranks(scope.group(), agreed_values(options));
    return Run(options, context, scope.group(), device).measure();
  });
  if (is_rank_0) {
    print(results, context.results);  // First: if a file cannot be written, the results are at least printed.
    write_files(options, results, json_file.get());
  }
  return program::kSuccess;
}

}  // namespace narrowcast::bench
