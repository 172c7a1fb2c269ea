#include "ops/collectives/mean/cost_model.h"

#include <narrowcast/wire_format.h>

namespace narrowcast::collectives {

Route choose_route(int64_t numel, int64_t world_size, WireFormat format, const LinkCost& cost) {
  if (world_size == 1) {
    return Route::kNowhere;
  }
  const auto bytes = static_cast<double>(encoded_size(numel, format));
  const auto ranks = static_cast<double>(world_size);
  const double one_shot = cost.seconds_per_hop + (ranks - 1) * bytes * cost.seconds_per_byte;
  const double two_shot = 2 * cost.seconds_per_hop + 2 * (ranks - 1) / ranks * bytes * cost.seconds_per_byte;
  return one_shot <= two_shot ? Route::kOneShot : Route::kTwoShot;
}

}  // namespace narrowcast::collectives
