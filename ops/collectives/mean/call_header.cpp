#include "ops/collectives/mean/call_header.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <narrowcast/wire_format.h>
#include "ops/backend_errors.h"
#include "ops/collectives/all_gather_rows.h"

namespace narrowcast::collectives {
namespace {

static_assert(std::is_trivially_copyable_v<CallHeader> && std::has_unique_object_representations_v<CallHeader>);

std::string name_of_format(int64_t number) {
  const auto is_it = [number](WireFormat format) { return static_cast<int64_t>(format) == number; };
  const auto* const found = std::find_if(kWireFormats.begin(), kWireFormats.end(), is_it);
  return found == kWireFormats.end() ? "number " + std::to_string(number) : std::string(to_string(*found));
}

std::string name_of_device(int64_t number) {
  const auto type = static_cast<at::DeviceType>(number);
  return static_cast<int64_t>(type) == number && c10::isValidDeviceType(type)
             ? c10::DeviceTypeName(type, /*lower_case=*/true)
             : "device number " + std::to_string(number);
}

}  // namespace

CallHeader header_of_call(const at::Tensor& array, WireFormat format) {
  return {.numel = array.numel(),
          .format = static_cast<int64_t>(format),
          .device_type = static_cast<int64_t>(array.device().type())};
}

CallHeader header_of_refusal(const Refusal& refusal) {
  CallHeader header;
  write_refusal(refusal, header.refusal.data());
  return header;
}

bool are_same_call(const std::vector<CallHeader>& headers) {
  const CallHeader& first = headers.front();
  return first.mark == CallHeader::kMark && !read_refusal(first.refusal.data()).has_value() &&
         std::all_of(headers.begin(), headers.end(),
                     [&](const CallHeader& header) { return std::memcmp(&header, &first, sizeof(CallHeader)) == 0; });
}

void check_same_call(const std::string& call, int64_t rank, const std::vector<CallHeader>& headers) {
  for (size_t sender = 0; sender < headers.size(); ++sender) {
    if (headers[sender].mark != CallHeader::kMark) {
      throw_backend_error(rank, call,
                          c10::str("rank ", sender, " sent something else than what such a call begins with"));
    }
  }
  for (size_t sender = 0; sender < headers.size(); ++sender) {
    const auto refusal = read_refusal(headers[sender].refusal.data());
    if (refusal.has_value()) {
      throw_refusal(*refusal, call, static_cast<int64_t>(sender));
    }
  }
  const CallHeader& first = headers.front();
  for (size_t other = 1; other < headers.size(); ++other) {
    const CallHeader& header = headers[other];
    TORCH_CHECK_VALUE(header.numel == first.numel, call, ": x has ", header.numel, " elements on rank ", other, " but ",
                      first.numel, " on rank 0");
    TORCH_CHECK_VALUE(header.format == first.format, call, ": format is ", name_of_format(header.format), " on rank ",
                      other, " but ", name_of_format(first.format), " on rank 0");
    TORCH_CHECK_VALUE(header.device_type == first.device_type, call, ": x is on ", name_of_device(header.device_type),
                      " on rank ", other, " but on ", name_of_device(first.device_type), " on rank 0");
  }
}

std::vector<CallHeader> gather_headers(const std::string& call, const CallHeader& own,
                                       const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device) {
  std::vector<CallHeader> headers(group->getSize(), own);
  const at::Tensor sent = at::from_blob(headers.data(), {kCallHeaderBytes}, at::kByte).clone();
  const at::Tensor received = all_gather_rows(group, call, sent, device);
  std::memcpy(headers.data(), received.const_data_ptr(), received.nbytes());
  return headers;
}

}  // namespace narrowcast::collectives
