// The results as other programs read them; docs/benchmarking.md lists the keys.
#pragma once

#include <nlohmann/json.hpp>

#include "ops/export.h"
#include "trainer/bench/bench_options.h"
#include "trainer/bench/results.h"

namespace narrowcast::bench {

NARROWCAST_EXPORT nlohmann::json to_json(const BenchOptions& options, const BenchResults& results);

}  // namespace narrowcast::bench
