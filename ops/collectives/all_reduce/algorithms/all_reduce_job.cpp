#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"

#include <algorithm>
#include <utility>

#include "ops/collectives/all_reduce/algorithms/one_shot.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/collectives/all_reduce/algorithms/two_levels.h"
#include "ops/collectives/all_reduce/array/element_order.h"

namespace narrowcast::collectives {
namespace {

bool has_levels(const AllReduceJobOptions& options) {
  return options.nodes != nullptr && options.nodes->memory != nullptr && !options.codec;
}

std::unique_ptr<AllReduceExchange> make_exchange(const AllReduceJobOptions& options, const AllReduceOptions& mean,
                                                 int64_t array, std::shared_ptr<MessageMemory> memory) {
  if (has_levels(options) && mean.numel > 0) {
    return make_two_levels({mean, options.nodes, array, options.link}, std::move(memory));
  }
  const Route route = choose_route(mean.numel, mean.world_size, mean.format, options.link);
  return make_exchange(route, mean, std::move(memory));
}

std::unique_ptr<AllReduceExchange> make_narrow_exchange(const AllReduceJobOptions& options,
                                                        std::shared_ptr<MessageMemory> memory) {
  const bool gets_whole = options.result == Result::kWhole;
  const AllReduceOptions mean{.rank = options.rank,
                              .world_size = options.world_size,
                              .numel = options.numel,
                              .format = options.format,
                              .order = gets_whole ? ElementOrder::of(options.format, options.numel) : ElementOrder(),
                              .result = options.result};
  if (options.codec) {
    return make_one_shot(mean, options.codec(at::kCPU), std::move(memory));
  }
  return make_exchange(options, mean, /*array=*/0, std::move(memory));
}

// Null if there are no exact elements.
std::unique_ptr<AllReduceExchange> make_exact_exchange(const AllReduceJobOptions& options, int64_t numel,
                                                       std::shared_ptr<MessageMemory> memory) {
  if (numel == 0) {
    return nullptr;
  }
  return make_exchange(options,
                       {.rank = options.rank,
                        .world_size = options.world_size,
                        .numel = numel,
                        .format = WireFormat::kFp32,
                        .first_channel = kChannelsPerArray},
                       /*array=*/1, std::move(memory));
}

}  // namespace

AllReduceJob::AllReduceJob(AllReduceJobOptions options, const JobMemory& memory)
    : options_(std::move(options)),
      narrow_(make_narrow_exchange(options_, memory.narrow)),
      exact_(options_.exact),
      exact_exchange_(make_exact_exchange(options_, exact_.values().numel(), memory.exact)),
      payload_bytes_(narrow_->payload_bytes() + (exact_exchange_ == nullptr ? 0 : exact_exchange_->payload_bytes())) {}

AllReduceJob::~AllReduceJob() = default;

JobMemory AllReduceJob::memory_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return {.narrow = MessageMemory::of(group)};
}

// Exact elements leave the array in start, before its other elements are copied.
void AllReduceJob::prepare() {
  if (exact_exchange_ == nullptr) {
    narrow_->prepare(call_);
  }
}

void AllReduceJob::cancel() {
  narrow_->cancel();
  call_ = {};
}

void AllReduceJob::start(engine::Transport& transport) {
  advanced_ = 0;
  if (exact_exchange_ != nullptr) {
    exact_.take_from(call_.array);
    if (call_.residuals.carried.defined()) {
      exact_.clear_in(call_.residuals.carried);  // Exact elements have no carried residual.
    }
    exact_exchange_->post_receives(transport);
  }
  narrow_->post_receives(transport);
  if (exact_exchange_ != nullptr) {
    exact_exchange_->start(transport, {exact_.values(), {}, {}});
  }
  narrow_->start(transport, call_);
}

int64_t AllReduceJob::advances() const {
  return std::max(narrow_->advances(), exact_exchange_ == nullptr ? 0 : exact_exchange_->advances());
}

bool AllReduceJob::is_ready() {
  const auto is_ready = [this](AllReduceExchange* exchange) {
    return exchange == nullptr || advanced_ >= exchange->advances() || exchange->is_ready();
  };
  return is_ready(narrow_.get()) && is_ready(exact_exchange_.get());
}

void AllReduceJob::advance(engine::Transport& transport) {
  for (AllReduceExchange* const exchange : {exact_exchange_.get(), narrow_.get()}) {
    if (exchange != nullptr && advanced_ < exchange->advances()) {
      exchange->advance(transport);
    }
  }
  ++advanced_;
}

at::Tensor AllReduceJob::finish(engine::Transport& transport) {
  narrow_->finish(transport);
  if (exact_exchange_ != nullptr) {
    exact_exchange_->finish(transport);
    exact_.put_back(call_.array);
  }
  return std::exchange(call_, {}).array;
}

void AllReduceJob::give_up() {
  narrow_->give_up();
  if (exact_exchange_ != nullptr) {
    exact_exchange_->give_up();
  }
}

}  // namespace narrowcast::collectives
