// What every rank tells all others of its call before data is sent, so that all come to the same verdict.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "ops/codec/wire_format.h"
#include "ops/collectives/refusal.h"

namespace narrowcast::collectives {

// As it travels. All ranks of a job have the same byte order.
struct CallHeader {
  static constexpr int64_t kMark = 0x6E63617374726564;

  int64_t mark = kMark;
  int64_t numel = 0;        // Of the array.
  int64_t format = 0;       // Of WireFormat.
  int64_t device_type = 0;  // Of at::DeviceType: where the array is.
  std::array<uint8_t, kRefusalBytes> refusal{};
};

inline constexpr auto kCallHeaderBytes = static_cast<int64_t>(sizeof(CallHeader));

CallHeader header_of_call(const at::Tensor& array, WireFormat format);
CallHeader header_of_refusal(const Refusal& refusal);

// Whether all ranks make the same call. `headers`: by rank.
bool are_same_call(const std::vector<CallHeader>& headers);

// Throws unless they are, on all ranks the same: the c10::ValueError or c10::TypeError that a rank found itself, or a
// c10::ValueError naming what differs from rank 0. c10::DistBackendError if a rank sent something else than a header.
void check_same_call(const std::string& call, int64_t rank, const std::vector<CallHeader>& headers);

// All ranks' headers, by rank, through the all-gather of a group that moves no CPU tensors: on `device`, which is
// waited for. c10::DistBackendError naming rank and call if it fails.
std::vector<CallHeader> gather_headers(const std::string& call, const CallHeader& own,
                                       const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device);

}  // namespace narrowcast::collectives
