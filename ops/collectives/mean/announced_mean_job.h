// The quantised all-reduce of callers who have agreed on nothing before.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/collectives/mean/call_header.h"
#include "ops/collectives/mean/quantized_mean_job.h"
#include "ops/engine/job.h"

namespace narrowcast::collectives {

// start:   sends the header of this rank's call to every other rank.
// advance: waits for the headers of all others. If all are the same, every rank knows the size of every message, and
//          the mean starts. If not, no rank sends any data: the exchange ends, and the group is as good as before.
//          (Headers take a fraction of a millisecond. Encoding meanwhile, to send everything at once afterwards, costs
//          more: then no message is under way while the next one is encoded.)
// finish:  the mean's.
//
// Nothing of a former call is relied on, so that ranks cannot differ in what they remember.
class AnnouncedMeanJob final : public engine::Job {
 public:
  // `name`: of the exchange, in errors.
  AnnouncedMeanJob(std::string name, int64_t rank, int64_t world_size);

  // What the next submission does. `mean`, with its call set, is run if all ranks' headers are equal; null: headers are
  // all there is to exchange.
  void set_call(const CallHeader& own, std::shared_ptr<QuantizedMeanJob> mean);

  // Of the last submission, by rank. Ranks that differ are not an error of the job, after which its engine would take
  // no other: see check_same_call.
  std::vector<CallHeader> headers() const;

  std::string name() const override { return name_; }
  void start(engine::Transport& transport) override;
  void advance(engine::Transport& transport) override;
  at::Tensor finish(engine::Transport& transport) override;

 private:
  at::Tensor header(int64_t rank) const;

  const std::string name_;
  const int64_t rank_;
  const int64_t world_size_;
  const at::Tensor headers_;  // uint8 [W * header], by rank; this rank's own is what it sends.
  std::vector<int64_t> receives_;
  std::shared_ptr<QuantizedMeanJob> mean_;  // Null also once the ranks are found to differ.
};

}  // namespace narrowcast::collectives
