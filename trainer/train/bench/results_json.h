// The results for other programs; docs/benchmarking.md lists the keys.
#pragma once

#include <nlohmann/json.hpp>

#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

struct BenchOptions;

// An object with all that was measured with these options. What was not is absent; numbers that are not finite are
// null.
nlohmann::json to_json(const BenchOptions& options, const BenchResults& results);

}  // namespace narrowcast::bench
