// Makes the options of narrowcast-bench from its command line.
#pragma once

#include <string>
#include <vector>

#include "trainer/base/program/command_line.h"
#include "trainer/train/bench/run_bench.h"
#include "trainer/train/bench/sizes.h"
#include "trainer/train/options/worker_options.h"

namespace narrowcast {

// The variables that the flags set.
struct BenchArguments {
  bench::BenchOptions options = {.device = "auto"};
  std::vector<std::string> bucket_mib = {};  // numbers, as given
  std::vector<std::string> buckets = {};
  bench::SizeFlags sizes = {};
  options::WorkerPlace place = {};
  bool list_hooks = false;  // print them and end
};

// The description for --help and --version. The flags set the members of `arguments`, which must outlive the
// description. docs/reference/bench.md explains the flags.
program::Description bench_description(BenchArguments& arguments);

// The options of a run. Throws c10::ValueError for a flag that has no effect with the other flags, and for a list or a
// size that cannot be read. Values are checked where they are used.
bench::BenchOptions read_bench_options(const program::CommandLine& line, BenchArguments arguments);

}  // namespace narrowcast
