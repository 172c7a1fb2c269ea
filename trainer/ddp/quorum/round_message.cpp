#include "trainer/ddp/quorum/round_message.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <charconv>
#include <cstring>
#include <system_error>
#include <type_traits>

#include <narrowcast/errors.h>

namespace narrowcast {

static_assert(std::is_trivially_copyable_v<RoundHeader> && kRoundHeaderBytes % 64 == 0);

at::Tensor round_message(const RoundHeader& header, const at::Tensor& encoded) {
  at::Tensor message = at::empty({kRoundHeaderBytes + encoded.numel()}, at::kByte);
  std::memcpy(message.mutable_data_ptr(), &header, sizeof(header));
  encoded_in(message).copy_(encoded);
  return message;
}

RoundHeader header_of(const at::Tensor& message, int64_t group, int64_t number) {
  NARROWCAST_CHECK_INPUT(message.numel() >= kRoundHeaderBytes, "a message of an outer round has ", message.numel(),
                         " bytes, but its header alone has ", kRoundHeaderBytes);
  RoundHeader header;
  std::memcpy(&header, message.const_data_ptr(), sizeof(header));
  NARROWCAST_CHECK_INPUT(header.mark == RoundHeader::kMark, "group ", group,
                         " sent bytes that are not a message of an outer round");
  NARROWCAST_CHECK_INPUT(header.group == group && header.number == number, "message ", number, " of group ", group,
                         " names itself message ", header.number, " of group ", header.group);
  NARROWCAST_CHECK_INPUT(header.rounds >= 0, "message ", number, " of group ", group, " was sent after ", header.rounds,
                         " rounds");
  NARROWCAST_CHECK_INPUT(header.weight >= 1 && header.weight <= kMostRoundWeight, "the weight of message ", number,
                         " of group ", group, " must be in 1..", kMostRoundWeight, ", but is ", header.weight);
  return header;
}

at::Tensor encoded_in(const at::Tensor& message) {
  return message.narrow(0, kRoundHeaderBytes, message.numel() - kRoundHeaderBytes);
}

std::string text_of_groups(const std::vector<int64_t>& groups) { return c10::Join(",", groups); }

std::vector<int64_t> parse_groups(std::string_view text, int64_t groups, int64_t quorum) {
  std::vector<int64_t> parsed;
  const char* begin = text.data();
  const char* const end = begin + text.size();
  for (bool is_over = false; !is_over;) {
    int64_t group = 0;
    const auto [next, error] = std::from_chars(begin, end, group);
    NARROWCAST_CHECK_INPUT(error == std::errc() && (next == end || *next == ','),
                           "the store's list of groups in an outer round has something that is not a number");
    NARROWCAST_CHECK_INPUT(group >= 0 && group < groups && (parsed.empty() || group > parsed.back()),
                           "the store's list of groups in an outer round must ascend within 0..", groups - 1,
                           ", but has ", group, " at place ", parsed.size());
    parsed.push_back(group);
    is_over = next == end;
    begin = is_over ? end : next + 1;
  }
  NARROWCAST_CHECK_INPUT(static_cast<int64_t>(parsed.size()) >= quorum,
                         "the store's list of groups in an outer round "
                         "has ",
                         parsed.size(), " groups, but outer_quorum is ", quorum);
  return parsed;
}

}  // namespace narrowcast
