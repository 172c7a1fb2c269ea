// narrowcast-bench: the options of a run, and the run from the first check to its recommendation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/ddp_options.h>
#include <narrowcast/process_group.h>
#include "trainer/train/bench/sizes.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::bench {

// The options of a run.
struct BenchOptions {
  std::string version = {};             // of the program
  std::string device = "cpu";           // where buckets are; see choose_device
  std::vector<std::string> hooks = {};  // empty: measurable_hooks() that average, each under one name
  // Sizes of a bucket of float32, MiB.
  std::vector<double> bucket_mib = {DdpOptions().bucket_cap_mb().value()};
  std::optional<SizeRange> sizes = {};    // instead of them
  std::vector<int64_t> buckets = {1, 4};  // numbers of buckets in flight
  int64_t iterations = 20;                // measured for each hook and case
  int64_t warmup_iterations = 3;          // before them
  bool link = true;                       // measure the link
  bool kernels = true;                    // measure the kernels
  bool check = true;                      // compare the hooks' means with the exact one
  hooks::WireOptions wire = {};           // of hooks of wire formats: levels, node_size, link_us, and
                                          // link_gbit, to which rates are compared instead of the measured link
  std::string json_file = {};             // for the results; empty: none
  std::string report_file = {};           // a page for people (reporting::report_page); empty: none
  int64_t threads = 0;                    // of each rank; 0: OMP_NUM_THREADS, else the node's cores shared by its ranks
  ProcessGroupOptions group = {.backend = "auto"};  // "auto": the device's backend
};

// The hooks that average gradients: every name of the table except "none".
std::vector<std::string> measurable_hooks();

// The hooks of a run: those requested, or all worth measuring. kReference is always among them and comes first.
std::vector<std::string> hooks_to_measure(const BenchOptions& options);

// The sizes of a bucket in this run, bytes of whole float32 elements.
std::vector<int64_t> bucket_sizes(const BenchOptions& options);

// Throws c10::ValueError naming the option and its value for every error that one rank can detect alone.
void check_options(const BenchOptions& options, int64_t world_size);

// The values that must be equal on all ranks, for check_equal_on_all_ranks.
std::vector<NamedValue> agreed_values(const BenchOptions& options);

// The numbers of a flag that takes a list. Throws c10::ValueError naming the flag and the word that is not a number.
std::vector<double> parse_numbers(const std::string& flag, const std::vector<std::string>& words);
std::vector<int64_t> parse_integers(const std::string& flag, const std::vector<std::string>& words);

// Finds the device first. Joins the other ranks, compares the options, measures, and on rank 0 prints the results, then
// writes the requested files. Returns kSuccess. Throws the error classes of docs/reference/errors.md.
int run_bench(const BenchOptions& options, const job::JobContext& context);

}  // namespace narrowcast::bench
