// narrowcast-bench from the first check to its recommendation.
#pragma once

#include "trainer/train/bench/bench_options.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::bench {

// Joins the other ranks, compares the options, measures, and prints the results on rank 0, which also writes the JSON
// file. Returns kSuccess. Throws the classes of errors that docs/errors.md tells apart.
int run_bench(const BenchOptions& options, const job::JobContext& context);

}  // namespace narrowcast::bench
