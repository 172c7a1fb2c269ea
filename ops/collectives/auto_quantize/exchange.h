// One call of a collective whose tensors travel as FP16 or BFP16.
//
// W ranks take part. Rank s has a segment of elements for rank r, and rank r has a place for it in its outputs:
//   all_gather:            the segment is rank s's input, whoever r is; the place is outputs[s] of rank r
//   all_to_all:            the segment is inputs[r] of rank s; the place is outputs[s] of rank r
//   all_to_all_single:     the segment is rank s's rows for r, input_split_sizes[r] of them; the place is
//                          output_split_sizes[s] rows of rank r's output
// Segments may differ in size; a segment and its place must not. The steps:
//   1. plan_*: each rank checks its own arguments.
//   2. agree: every rank learns all ranks' sizes by one small collective, or what a rank found wrong with its own
//      arguments. If there is such a rank, or some segment does not fit its place, every rank throws the same error,
//      and no data was sent.
//   3. start: each rank encodes its segments, one after the other, into one buffer of 16-bit codes, and the group's own
//      all-gather or all-to-all moves them. All-gather wants segments of one size: shorter ones are filled up.
//   4. finish: each rank has the W segments meant for it in rank order, decodes them all, and only then copies them to
//      its outputs. Until here nothing of the outputs has changed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include <narrowcast/auto_quantize.h>
#include "ops/comm/groups/arguments.h"

namespace narrowcast::collectives {

enum class Collective { kAllGather, kAllToAll, kAllToAllSingle };

// The operator's name in errors, for instance "auto_quantize_all_gather".
const char* operator_name(Collective collective);

// A call, as its steps hand it on.
struct Exchange {
  Collective collective = Collective::kAllGather;
  Encoding encoding;
  Group group;
  int64_t rank = 0;                 // This rank.
  std::vector<at::Tensor> sources;  // What this rank encodes, one after the other. Empty once it has.
  std::vector<at::Tensor> targets;  // What is received fills these, one after the other.
  std::vector<int64_t> sends;       // Elements of this rank's segment for each rank.
  std::vector<int64_t> receives;    // Elements of this rank's place for each rank's segment.
};

// Rows (indices of dimension 0) that go to and come from each rank; none: equal parts.
struct Splits {
  at::OptionalIntArrayRef output;
  at::OptionalIntArrayRef input;
};

// How the tensors shall travel, from arguments that may be wrong: then it throws as plan_* do.
using EncodingArgument = std::function<Encoding()>;

// Step 1. If arguments are wrong, takes part in step 2 to tell the other ranks: then all of them throw a
// c10::ValueError or c10::TypeError that names the rank, the argument and its value. c10::ValueError for a group that
// is null.
Exchange plan_all_gather(const Group& group, const EncodingArgument& encoding, at::TensorList outputs,
                         const at::Tensor& input);
Exchange plan_all_to_all(const Group& group, const EncodingArgument& encoding, at::TensorList outputs,
                         at::TensorList inputs);
Exchange plan_all_to_all_single(const Group& group, const EncodingArgument& encoding, const at::Tensor& output,
                                const at::Tensor& input, Splits splits);

// Step 2. Every rank announces to all others which collective it calls, its qtype, how many elements it sends to each
// rank and how many it expects from each, or why it cannot take part (ops/comm/groups/agree.h). One all-gather, on the
// CPU if the group can; else on the tensors' device, which then waits for it.
//
// Returns the number of elements of the longest segment that this rank sends or receives. c10::ValueError or
// c10::TypeError as above; c10::DistBackendError if a peer or the network fails, or a peer sends what is no such
// announcement.
int64_t agree(const Exchange& exchange);

// Tells the other ranks that this one cannot take part, and throws what they throw. `exchange` has no tensors.
[[noreturn]] void refuse(const Exchange& exchange, const Refusal& refusal);

// The data on its way.
struct InFlight {
  Exchange exchange;
  at::Tensor sent;      // float16 [elements]; the network reads it until work is complete.
  at::Tensor received;  // float16 [elements]: the segments for this rank, each from a multiple of `stride` on.
  int64_t stride = 0;   // 0: without gaps.
  c10::intrusive_ptr<c10d::Work> work;
  bool is_enqueued = false;  // The work's future is complete as soon as it is enqueued, as on a GPU.
};

// Steps 2 and 3. Waits for the ranks to agree, but not for the data. c10::ValueError if ranks disagree,
// c10::DistBackendError if a peer or the network fails.
InFlight start(Exchange exchange);

// Step 4, once work is complete.
void finish(const InFlight& in_flight);

// All steps after the first, on the calling thread.
void run(Exchange exchange);

// The asynchronous end: a work that is complete when the outputs are written. Whoever completes the group's own work
// decodes, in a callback of its future that waits for nothing: nobody need call wait. Its future's value is the list of
// the outputs; its error is c10::DistBackendError. wait takes a timeout, for the data; what was not in time may still
// arrive.
c10::intrusive_ptr<c10d::Work> decode_when_complete(InFlight in_flight);

}  // namespace narrowcast::collectives
