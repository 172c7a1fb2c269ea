// One call of a collective whose tensors are sent as FP16 or BFP16.
//
// W ranks take part. Rank s has a part of its elements for rank r, and rank r has a place for it in its outputs:
//
//   collective         part                                              place
//   all_gather         rank s's input, for every r                       outputs[s] of rank r
//   all_to_all         inputs[r] of rank s                               outputs[s] of rank r
//   all_to_all_single  input_split_sizes[r] rows of rank s's input       output_split_sizes[s] rows of rank r's output
//
// Parts may differ in size. A part and its place must have the same size. The steps:
//   1. plan_* (plan.h): each rank checks its own arguments.
//   2. agree (agreement.h): one small collective gives every rank the sizes of all ranks, or the reason why a rank's
//      arguments are wrong. If a rank's arguments are wrong, or if a part does not fit its place, every rank throws
//      the same error, and no data is sent.
//   3. start: each rank encodes its parts, one after the other, into one buffer of 16-bit codes, and the group's own
//      all-gather or all-to-all moves them. All-gather needs parts of one size, so shorter ones are padded.
//   4. finish: each rank has its W parts in rank order, decodes them all, and only then copies them to its outputs.
//      The outputs do not change before.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include <narrowcast/auto_quantize.h>
#include "ops/comm/groups/arguments.h"

namespace narrowcast::collectives {

enum class Collective { kAllGather, kAllToAll, kAllToAllSingle };

// The operator's name in errors, for instance "auto_quantize_all_gather".
const char* operator_name(Collective collective);

// A call, as one step passes it to the next.
struct Exchange {
  Collective collective = Collective::kAllGather;
  Encoding encoding;
  Group group;
  int64_t rank = 0;                 // This rank.
  std::vector<at::Tensor> sources;  // Encoded one after the other by this rank. Empty after that.
  std::vector<at::Tensor> targets;  // Filled one after the other with the received elements.
  std::vector<int64_t> sends;       // Elements of this rank's part for each rank.
  std::vector<int64_t> receives;    // Elements of this rank's place for each rank's part.
};

// An exchange whose data are in flight.
struct InFlight {
  Exchange exchange;
  at::Tensor sent;      // float16 [elements]; the network reads it until work is complete.
  at::Tensor received;  // float16 [elements]: the parts for this rank; each begins at a multiple of `stride`.
  int64_t stride = 0;   // 0: without gaps.
  c10::intrusive_ptr<c10d::Work> work;
  bool is_enqueued = false;  // The work's future is complete as soon as it is enqueued, as on a GPU.
};

// Steps 2 and 3. Waits for the agreement of the ranks, without waiting for the data. c10::ValueError if ranks disagree,
// c10::DistBackendError if a peer or the network fails.
InFlight start(Exchange exchange);

// Step 4, once work is complete.
void finish(const InFlight& in_flight);

// All steps after the first, on the calling thread.
void run(Exchange exchange);

// Returns a work that is complete when the outputs are written. A callback of the future of the group's own work
// decodes, in the thread that completes that work. The callback does not wait, and the caller does not need to call
// wait. The future's value is the list of the outputs; its error is c10::DistBackendError. wait takes a timeout for the
// data. Data that were not in time may still arrive.
c10::intrusive_ptr<c10d::Work> decode_when_complete(InFlight in_flight);

}  // namespace narrowcast::collectives
