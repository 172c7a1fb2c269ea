#include "trainer/train/bench/bench_options.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "hooks/hook_table.h"

namespace narrowcast::bench {
namespace {

constexpr double kMostMib = 4096;
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

}  // namespace

bool averages(const std::string& hook) { return hooks::hook_row(hook).keeps_replicas_equal; }

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
    hooks.erase(std::remove_if(hooks.begin(), hooks.end(), std::not_fn(averages)), hooks.end());
  }
  hooks.erase(std::remove(hooks.begin(), hooks.end(), kReference), hooks.end());
  hooks.insert(hooks.begin(), kReference);
  return hooks;
}

void check_options(const BenchOptions& options, int64_t world_size) {
  check_hooks(options.hooks);
  constexpr double kLeastMib = 4.0 / (1 << 20);
  check_list("bucket_mib", options.bucket_mib, kLeastMib, kMostMib);
  check_list("buckets", options.buckets, int64_t{1}, kMostBuckets);
  check_list("iterations", std::vector<int64_t>{options.iterations}, int64_t{1}, kMostIterations);
  check_list("warmup_iterations", std::vector<int64_t>{options.warmup_iterations}, int64_t{0}, kMostIterations);
  TORCH_CHECK_VALUE(!options.link_gbit || (std::isfinite(*options.link_gbit) && *options.link_gbit > 0),
                    "link_gbit: must be positive, but is ", *options.link_gbit);
  TORCH_CHECK_VALUE(world_size >= 2, "needs at least 2 ranks, but is a process alone; ",
                    "start it with narrowcast-run --nproc_per_node=N or another launcher");
}

std::vector<NamedValue> agreed_values(const BenchOptions& options) {
  return {{"version", options.version},
          {"hooks", absl::StrJoin(hooks_to_measure(options), ",")},
          {"bucket_mib", absl::StrJoin(options.bucket_mib, ",")},
          {"buckets", absl::StrJoin(options.buckets, ",")},
          {"iterations", absl::StrCat(options.iterations)},
          {"warmup_iterations", absl::StrCat(options.warmup_iterations)},
          {"link", options.link ? "true" : "false"},
          {"kernels", options.kernels ? "true" : "false"}};
}

std::vector<double> parse_numbers(const std::string& flag, const std::vector<std::string>& words) {
  std::vector<double> numbers(words.size());
  for (size_t i = 0; i < words.size(); ++i) {
    TORCH_CHECK_VALUE(absl::SimpleAtod(words[i], &numbers[i]), flag, ": '", words[i], "' is no number");
  }
  return numbers;
}

std::vector<int64_t> parse_integers(const std::string& flag, const std::vector<std::string>& words) {
  std::vector<int64_t> integers(words.size());
  for (size_t i = 0; i < words.size(); ++i) {
    TORCH_CHECK_VALUE(absl::SimpleAtoi(words[i], &integers[i]), flag, ": '", words[i], "' is no whole number");
  }
  return integers;
}

}  // namespace narrowcast::bench
