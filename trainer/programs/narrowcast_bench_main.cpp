// narrowcast-bench: measures each hook on this network.
#include <absl/flags/flag.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Logging.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>
#include "trainer/base/program/command_line.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/bench/results.h"
#include "trainer/train/bench/run_bench.h"
#include "trainer/train/flags/worker_flags.h"

using narrowcast::bench::BenchOptions;

namespace {

const BenchOptions kDefaults;

template <class Number>
std::vector<std::string> words(const std::vector<Number>& numbers) {
  std::vector<std::string> texts;
  for (const Number number : numbers) {
    texts.push_back(absl::StrCat(number));
  }
  return texts;
}

}  // namespace

ABSL_FLAG(
    std::vector<std::string>, hooks, {},
    absl::StrCat("Hooks to measure, separated by commas; --list_hooks prints all. Always measured, for comparison: ",
                 narrowcast::bench::kReference, ". Default: see docs/reference/bench.md."));
ABSL_FLAG(std::vector<std::string>, bucket_mib, words(kDefaults.bucket_mib),
          "Sizes of a bucket of float32 gradients, in MiB.");
ABSL_FLAG(std::string, min_bytes, "",
          "Smallest bucket size in bytes, or KiB, MiB or GiB with K, M or G after the number. Needs --max_bytes and "
          "replaces --bucket_mib.");
ABSL_FLAG(std::string, max_bytes, "", "Largest bucket size, in the same format.");
ABSL_FLAG(int64_t, factor, narrowcast::bench::SizeRange{}.factor,
          "Factor between sizes from --min_bytes to --max_bytes.");
ABSL_FLAG(std::vector<std::string>, buckets, words(kDefaults.buckets), "Numbers of buckets in flight.");
ABSL_FLAG(int64_t, iterations, kDefaults.iterations, "Measured iterations per hook and case.");
ABSL_FLAG(int64_t, warmup_iterations, kDefaults.warmup_iterations, "Unmeasured iterations before the measured ones.");
ABSL_FLAG(bool, link, kDefaults.link, "Measure the link between neighbouring ranks.");
ABSL_FLAG(bool, kernels, kDefaults.kernels,
          "Measure the kernels of the wire formats, on one thread of rank 0 or on its GPU.");
ABSL_FLAG(bool, check, kDefaults.check, "Compare each hook's mean with the exact mean, once per size.");
ABSL_FLAG(std::string, json, "", "File for the results as JSON, replaced if it exists; see docs/reference/bench.md.");
ABSL_FLAG(std::string, report, "", "Page (NAME.html) with the results as charts and tables, replaced if it exists.");
ABSL_FLAG(bool, list_hooks, false, "Print all hooks that can be measured, one per line, and end.");

namespace {

using narrowcast::program::CommandLine;

// The options, which other programs of workers partly share.
struct Arguments {
  BenchOptions options = {.device = "auto"};
  narrowcast::options::WorkerPlace place = {};
};

std::vector<narrowcast::program::Flag> worker_flags(Arguments& arguments) {
  namespace options = narrowcast::options;
  BenchOptions& bench = arguments.options;
  std::vector<narrowcast::program::Flag> flags;
  for (const auto& rows : {options::place_options(arguments.place),
                           options::route_options(bench.wire),
                           options::patience_options(bench.group),
                           {options::device_option(bench.device), options::threads_option(bench.threads)}}) {
    for (const options::Option& row : rows) {
      flags.push_back(flag_of(row));
    }
  }
  return flags;
}

std::vector<std::string> place_flags() {
  narrowcast::options::WorkerPlace place;
  std::vector<std::string> flags;
  for (const auto& row : narrowcast::options::place_options(place)) {
    flags.push_back(row.flag);
  }
  return flags;
}

narrowcast::program::Description description(Arguments& arguments) {
  return {
      .name = "narrowcast-bench",
      .version = NARROWCAST_VERSION,
      .summary = "measures the network, the kernels and the communication hooks, and recommends a hook.",
      .usage = "narrowcast-run --nproc_per_node=N narrowcast-bench [flags]",
      .flags = worker_flags(arguments),
      .groups = {{"What is measured",
                  {"hooks", "bucket_mib", "min_bytes", "max_bytes", "factor", "buckets", "iterations",
                   "warmup_iterations", "check", "link", "link_gbit", "link_us", "kernels", "list_hooks"}},
                 {"How",
                  {"device", "levels", "node_size", "json", "report", "threads", "timeout_seconds", "silence_seconds"}},
                 {"Place in the job", place_flags()}},
      .examples = {{"all hooks, on four processes and a simulated network of 1 Gbit/s",
                    "narrowcast-run --nproc_per_node=4 --simulate_gbit=1 narrowcast-bench"},
                   {"one of eight machines, under torchrun",
                    "torchrun --nnodes=8 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=HOST:29400 "
                    "--no-python narrowcast-bench"},
                   {"two ranks that share this machine's first GPU",
                    "narrowcast-run --nproc_per_node=2 narrowcast-bench --device=cuda:0"},
                   {"some hooks, smaller buckets, on a simulated network of 10 Gbit/s",
                    "narrowcast-run --nproc_per_node=2 --simulate_gbit=10 narrowcast-bench "
                    "--hooks=bf16_compress,quantize_per_channel --bucket_mib=1,25 --buckets=1"},
                   {"sizes from 64 KiB to 64 MiB, each four times the previous one",
                    "narrowcast-run --nproc_per_node=2 narrowcast-bench --min_bytes=64K --max_bytes=64M --factor=4 "
                    "--buckets=1"}},
      .exit_codes = narrowcast::program::common_exit_codes(),
      .exit_note = ""};
}

// The flag's value if it is given.
template <class Flag>
auto given(const CommandLine& line, const char* name, const Flag& flag) {
  return line.given(name) ? std::optional(absl::GetFlag(flag)) : std::nullopt;
}

BenchOptions read_options(const CommandLine& line, BenchOptions options) {
  options.version = NARROWCAST_VERSION;
  options.hooks = absl::GetFlag(FLAGS_hooks);
  options.bucket_mib = narrowcast::bench::parse_numbers("bucket_mib", absl::GetFlag(FLAGS_bucket_mib));
  options.sizes = narrowcast::bench::read_size_range({.min_bytes = given(line, "min_bytes", FLAGS_min_bytes),
                                                      .max_bytes = given(line, "max_bytes", FLAGS_max_bytes),
                                                      .factor = given(line, "factor", FLAGS_factor),
                                                      .bucket_mib_given = line.given("bucket_mib")});
  options.buckets = narrowcast::bench::parse_integers("buckets", absl::GetFlag(FLAGS_buckets));
  options.iterations = absl::GetFlag(FLAGS_iterations);
  options.warmup_iterations = absl::GetFlag(FLAGS_warmup_iterations);
  options.link = absl::GetFlag(FLAGS_link);
  options.kernels = absl::GetFlag(FLAGS_kernels);
  options.check = absl::GetFlag(FLAGS_check);
  options.json_file = absl::GetFlag(FLAGS_json);
  options.report_file = absl::GetFlag(FLAGS_report);
  narrowcast::check_file(line, "json", options.json_file);
  narrowcast::check_file(line, "report", options.report_file);
  narrowcast::check_patience(line, options.group);
  return options;
}

// Ends the process at once: other threads may wait for ever.
void end_for_silence(const std::string& why) {
  std::_Exit(
      narrowcast::program::report_failure("narrowcast-bench", {narrowcast::program::kPeerFailed, why},
                                          narrowcast::program::error_file_writer(narrowcast::worker_error_file())));
}

int run(const CommandLine& line, const Arguments& arguments) {
  if (absl::GetFlag(FLAGS_list_hooks)) {
    std::cout << absl::StrJoin(narrowcast::bench::measurable_hooks(), "\n") << std::endl;
    return narrowcast::program::kSuccess;
  }
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;  // LibTorch logs errors before it throws them; one line is enough.
  c10::initLogging();
  return narrowcast::bench::run_bench(read_options(line, arguments.options),
                                      {.env = narrowcast::read_worker_env(arguments.place),
                                       .session = narrowcast::SessionEnv::from_environment(),
                                       .results = std::cout,
                                       .progress = std::cerr,
                                       .progress_is_terminal = false,
                                       .on_silence = end_for_silence});
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  return narrowcast::program::run_main(
      description(arguments), argc, argv, [&](const CommandLine& line) { return run(line, arguments); },
      narrowcast::program::error_file_writer(narrowcast::worker_error_file()));
}
