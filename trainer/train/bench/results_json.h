// The results as other programs read them; docs/benchmarking.md lists the keys.
#pragma once

#include <nlohmann/json.hpp>

#include "trainer/train/bench/bench_options.h"
#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

nlohmann::json to_json(const BenchOptions& options, const BenchResults& results);

}  // namespace narrowcast::bench
