#include "trainer/train/flags/bench_flags.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include <narrowcast/version.h>
#include "trainer/train/bench/results.h"
#include "trainer/train/flags/worker_flags.h"

namespace narrowcast {
namespace {

using options::Option;
using program::variable;

template <class Number>
std::vector<std::string> words(const std::vector<Number>& numbers) {
  std::vector<std::string> texts;
  for (const Number number : numbers) {
    texts.push_back(absl::StrCat(number));
  }
  return texts;
}

std::vector<Option> size_options(BenchArguments& arguments) {
  bench::SizeFlags& sizes = arguments.sizes;
  return {
      {.flag = "bucket_mib",
       .variable = variable(arguments.bucket_mib),
       .help = "Sizes of a bucket of float32 gradients, in MiB."},
      {.flag = "min_bytes",
       .variable = variable(sizes.min_bytes),
       .help = "Smallest bucket size in bytes, or KiB, MiB or GiB with K, M or G after the number. Needs "
               "--max_bytes and replaces --bucket_mib."},
      {.flag = "max_bytes", .variable = variable(sizes.max_bytes), .help = "Largest bucket size, in the same format."},
      {.flag = "factor",
       .variable = variable(sizes.factor),
       .help = "Factor between sizes from --min_bytes to --max_bytes.",
       .usual = absl::StrCat(bench::SizeRange{}.factor)},
      {.flag = "buckets", .variable = variable(arguments.buckets), .help = "Numbers of buckets in flight."}};
}

std::vector<Option> measurement_options(BenchArguments& arguments) {
  bench::BenchOptions& bench = arguments.options;
  return {
      {.flag = "hooks",
       .variable = variable(bench.hooks),
       .help = absl::StrCat(
           "Hooks to measure, separated by commas; --list_hooks prints all. Always measured, for comparison: ",
           bench::kReference, ". Default: see docs/reference/bench.md.")},
      {.flag = "iterations", .variable = variable(bench.iterations), .help = "Measured iterations per hook and case."},
      {.flag = "warmup_iterations",
       .variable = variable(bench.warmup_iterations),
       .help = "Unmeasured iterations before the measured ones."},
      {.flag = "link", .variable = variable(bench.link), .help = "Measure the link between neighbouring ranks."},
      {.flag = "kernels",
       .variable = variable(bench.kernels),
       .help = "Measure the kernels of the wire formats, on one thread of rank 0 or on its GPU."},
      {.flag = "check",
       .variable = variable(bench.check),
       .help = "Compare each hook's mean with the exact mean, once per size."},
      {.flag = "json",
       .variable = variable(bench.json_file),
       .help = "File for the results as JSON, replaced if it exists; see docs/reference/bench.md."},
      {.flag = "report",
       .variable = variable(bench.report_file),
       .help = "Page (NAME.html) with the results as charts and tables, replaced if it exists."},
      {.flag = "list_hooks",
       .variable = variable(arguments.list_hooks),
       .help = "Print all hooks that can be measured, one per line, and end."}};
}

std::vector<program::Flag> bench_flags(BenchArguments& arguments) {
  bench::BenchOptions& bench = arguments.options;
  std::vector<program::Flag> flags;
  for (const Option& row :
       options::joined({measurement_options(arguments),
                        size_options(arguments),
                        options::place_options(arguments.place),
                        options::route_options(bench.wire),
                        options::patience_options(bench.group),
                        {options::device_option(bench.device), options::threads_option(bench.threads)}})) {
    flags.push_back(options::flag_of(row));
  }
  return flags;
}

std::vector<std::string> place_flags(BenchArguments& arguments) {
  std::vector<std::string> flags;
  for (const Option& row : options::place_options(arguments.place)) {
    flags.push_back(row.flag);
  }
  return flags;
}

}  // namespace

program::Description bench_description(BenchArguments& arguments) {
  arguments.bucket_mib = words(arguments.options.bucket_mib);
  arguments.buckets = words(arguments.options.buckets);
  return {.name = "narrowcast-bench",
          .version = version(),
          .summary = "measures the network, the kernels and the communication hooks, and recommends a hook.",
          .usage = "narrowcast-run --nproc_per_node=N narrowcast-bench [flags]",
          .flags = bench_flags(arguments),
          .groups = {{"What is measured",
                      {"hooks", "bucket_mib", "min_bytes", "max_bytes", "factor", "buckets", "iterations",
                       "warmup_iterations", "check", "link", "link_gbit", "link_us", "kernels", "list_hooks"}},
                     {"How",
                      {"device", "levels", "node_size", "connections", "json", "report", "threads", "timeout_seconds",
                       "silence_seconds"}},
                     {"Place in the job", place_flags(arguments)}},
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
          .exit_codes = program::common_exit_codes(),
          .exit_note = ""};
}

bench::BenchOptions read_bench_options(const program::CommandLine& line, BenchArguments arguments) {
  bench::BenchOptions& options = arguments.options;
  options.version = version();
  options.bucket_mib = bench::parse_numbers("bucket_mib", arguments.bucket_mib);
  options.buckets = bench::parse_integers("buckets", arguments.buckets);
  arguments.sizes.bucket_mib_given = line.given("bucket_mib");
  options.sizes = bench::read_size_range(arguments.sizes);
  check_file(line, "json", options.json_file);
  check_file(line, "report", options.report_file);
  check_patience(line, options.group);
  return std::move(options);
}

}  // namespace narrowcast
