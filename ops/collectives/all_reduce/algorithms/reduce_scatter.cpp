#include "ops/collectives/all_reduce/algorithms/reduce_scatter.h"

#include <ATen/ops/from_blob.h>

#include <utility>
#include <vector>

#include "ops/collectives/all_reduce/algorithms/first_hop.h"

namespace narrowcast::collectives {
namespace {

// A residual as a tensor, [n]; undefined if there is none.
at::Tensor tensor_of(float* residual, int64_t begin, int64_t numel) {
  return residual == nullptr ? at::Tensor() : at::from_blob(residual + begin, {numel}, at::kFloat);
}

class ReduceScatterExchange final : public FirstHop {
 public:
  ReduceScatterExchange(Route route, const AllReduceOptions& options, std::shared_ptr<MessageMemory> memory)
      : FirstHop(options, std::move(memory)),
        rounds_part_(options.result == Result::kShardOfWhole && route == Route::kOneShot),
        rounds_mean_(options.result == Result::kShardOfWhole && route == Route::kTwoShot) {
    for (size_t chunk = 0; chunk < chunks(); ++chunk) {
      own_.push_back(offsets_.add(rounds_part_ || rounds_mean_ ? message_bytes(options.rank, chunk) : 0));
    }
  }

  int64_t advances() const override { return 0; }

  void start(engine::Transport& transport, AllReduceCall call) override {
    FirstHop::start(transport, std::move(call));
    for (size_t chunk = 0; rounds_part_ && !is_exact() && chunk < chunks(); ++chunk) {
      codec().encode(own(chunk).rounding(this->call(), 0), own(chunk).elements(this->call()), message(chunk));
    }
  }

  void finish(engine::Transport& transport) override {
    for (size_t chunk = 0; chunk < chunks(); ++chunk) {
      average(wait_for_parts(transport, chunk), chunk);
      call().callbacks.call_after_mean(own(chunk).range);
    }
    end_call();
  }

 private:
  SentRange own(size_t chunk) const { return sent(options().rank, chunk); }
  uint8_t* message(size_t chunk) const { return placed(own_[chunk]).mutable_data_ptr<uint8_t>(); }

  // Whether a message would hold this rank's elements unchanged, so that none is needed.
  bool is_exact() const { return sends_array() && call().residuals.mean == nullptr; }

  void average(RankMessages parts, size_t chunk) const {
    const ArraySlice elements = {call().array, own(chunk).range, nullptr, options().order.grain_order()};
    if (is_exact()) {
      codec().average(parts, elements);
    } else if (rounds_mean_) {
      encode_mean(codec(), own(chunk), call(), parts, message(chunk));
      codec().decode(message(chunk), elements);
    } else if (rounds_part_) {
      parts[options().rank] = message(chunk);
      codec().average(parts, elements);
    } else {
      average_unrounded(parts, elements);
    }
  }

  void average_unrounded(const RankMessages& parts, const ArraySlice& elements) const {
    const Residuals& residuals = call().residuals;
    const ElementRange& range = elements.range;
    const ElementRange shard = shard_of(options().rank, options().world_size, call().array.numel());
    const at::Tensor values = call().array.narrow(0, range.begin, range.numel);
    const at::Tensor own = tensor_of(residuals.own, range.begin, range.numel);
    const at::Tensor mean = tensor_of(residuals.mean, range.begin - shard.begin, range.numel);
    if (own.defined()) values.add_(own);
    codec().average(parts, elements);
    if (mean.defined()) values.add_(mean);
    if (!own.defined() && !mean.defined()) {
      return;
    }
    const at::Tensor has_arrived = values.isfinite();
    if (own.defined()) own.masked_fill_(has_arrived, 0);
    if (mean.defined()) mean.masked_fill_(has_arrived, 0);
  }

  const bool rounds_part_;  // This rank's part, as the parts that it sends.
  const bool rounds_mean_;
  std::vector<size_t> own_;  // By chunk: the message of what is rounded.
};

}  // namespace

std::unique_ptr<AllReduceExchange> make_reduce_scatter(Route route, const AllReduceOptions& options,
                                                       std::shared_ptr<MessageMemory> memory) {
  return std::make_unique<ReduceScatterExchange>(route, options, std::move(memory));
}

}  // namespace narrowcast::collectives
