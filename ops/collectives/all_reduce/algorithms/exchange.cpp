#include "ops/collectives/all_reduce/algorithms/exchange.h"

#include <c10/util/Exception.h>

#include <utility>

#include "ops/collectives/all_reduce/algorithms/first_hop.h"
#include "ops/collectives/all_reduce/algorithms/one_shot.h"
#include "ops/collectives/all_reduce/algorithms/reduce_scatter.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/collectives/all_reduce/algorithms/two_shot.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"

namespace narrowcast::collectives {
namespace {

// The exchange of a single rank: the mean is the array itself.
class NoExchange final : public AllReduceExchange {
 public:
  int64_t payload_bytes() const override { return 0; }
  int64_t advances() const override { return 0; }
  void post_receives(engine::Transport&) override {}
  void start(engine::Transport&, AllReduceCall) override {}
  void finish(engine::Transport&) override {}
};

}  // namespace

std::unique_ptr<AllReduceExchange> make_exchange(Route route, const AllReduceOptions& options,
                                                 std::shared_ptr<MessageMemory> memory) {
  if (options.result != Result::kWhole && route != Route::kNowhere) {
    return make_reduce_scatter(route, options, std::move(memory));
  }
  switch (route) {
    case Route::kNowhere:
      TORCH_CHECK_VALUE(options.world_size == 1, "route kNowhere is for one rank, but there are ", options.world_size);
      return std::make_unique<NoExchange>();
    case Route::kOneShot:
      return make_one_shot(options, one_shot_codec(options.format, at::kCPU, options.rank, options.order.grain_order()),
                           std::move(memory));
    case Route::kTwoShot:
      return make_two_shot(options, std::move(memory));
  }
  TORCH_CHECK_VALUE(false, "route ", static_cast<int>(route), " is not a valid Route");
}

std::vector<ElementRange> result_ranges(Route route, const AllReduceOptions& options) {
  switch (route) {
    case Route::kNowhere:
      return {};
    case Route::kOneShot:
      return one_shot_result_ranges(options.numel, grain_of(options.format));
    case Route::kTwoShot:
      return two_shot_result_ranges(options);
  }
  TORCH_CHECK_VALUE(false, "route ", static_cast<int>(route), " is not a valid Route");
}

}  // namespace narrowcast::collectives
