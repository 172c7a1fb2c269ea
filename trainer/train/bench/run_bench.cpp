#include "trainer/train/bench/run_bench.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "trainer/base/program/failure.h"
#include "trainer/train/bench/hook_times.h"
#include "trainer/train/bench/kernel_rates.h"
#include "trainer/train/bench/link_rate.h"
#include "trainer/train/bench/recommendation.h"
#include "trainer/train/bench/results_json.h"
#include "trainer/train/bench/tables.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::bench {
namespace {

// What all steps of a run need.
class Run {
 public:
  Run(const BenchOptions& options, const job::JobContext& context, const ProcessGroupPtr& group)
      : options_(options), context_(context), group_(group) {
    results_.ranks = group->getSize();
    results_.given_gbit = options.link_gbit;
  }

  BenchResults measure() {
    if (options_.link) {
      measure_link();
    }
    if (options_.kernels) {
      measure_kernels();
    }
    for (const double mib : options_.bucket_mib) {
      for (const int64_t buckets : options_.buckets) {
        measure_hooks(mib, buckets);
      }
    }
    return std::move(results_);
  }

 private:
  void measure_link() {
    announce("the link");
    results_.link = bench::measure_link(group_);
    results_.payload_bytes_sent += results_.link->payload_bytes_sent;
  }

  // On rank 0 alone, with the processor to itself.
  void measure_kernels() {
    announce("the kernels");
    if (context_.env.rank == 0) {
      results_.kernels = bench::measure_kernels();
    }
    barrier(group_, "waiting for rank 0 to measure the kernels");
  }

  void measure_hooks(double mib, int64_t buckets) {
    announce(absl::StrCat("hooks, ", buckets, " x ", mib, " MiB"));
    const auto elements = static_cast<int64_t>(std::llround(mib * (1 << 20) / sizeof(float)));
    const HookTimes measured = bench::measure_hooks(group_, {.hooks = hooks_to_measure(options_),
                                                             .numel = std::max<int64_t>(1, elements),
                                                             .buckets = buckets,
                                                             .warmup_iterations = options_.warmup_iterations,
                                                             .iterations = options_.iterations});
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
  BenchResults results_;
};

void print(const BenchResults& results, std::ostream& out) {
  if (results.link) {
    out << link_text(*results.link) << "\n";
  }
  if (results.kernels) {
    out << kernel_table(*results.kernels) << "\n";
  }
  out << "Hooks on " << results.ranks << " ranks, median time of the slowest rank (allreduce is always measured):\n"
      << hook_table(results) << "\n"
      << recommendation_text(recommend(results)) << std::flush;
}

}  // namespace

int run_bench(const BenchOptions& options, const job::JobContext& context) {
  job::set_threads(options.threads, context);
  check_options(options, context.env.world_size);
  const bool is_rank_0 = context.env.rank == 0;
  // Opened first, so that a path that cannot be written is known before anything is measured.
  const auto json_file =
      is_rank_0 && !options.json_file.empty() ? std::make_unique<files::AtomicFile>(options.json_file) : nullptr;
  const ProcessGroupScope scope(context.env, options.group);
  const BenchResults results = scope.run([&] {
    check_equal_on_all_ranks(scope.group(), agreed_values(options));
    return Run(options, context, scope.group()).measure();
  });
  if (json_file) {
    json_file->write(to_json(options, results).dump(1) + "\n");
    json_file->commit();
  }
  if (is_rank_0) {
    print(results, context.results);
  }
  return program::kSuccess;
}

}  // namespace narrowcast::bench
