// The messages of outer rounds with a quorum (OuterOptions::quorum), and the texts of the store that say who takes
// part.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <narrowcast/outer_optimizer.h>

namespace narrowcast {

// The beginning of a message. All ranks have the same byte order.
struct RoundHeader {
  uint64_t mark = kMark;
  int64_t group = 0;   // that sends it
  int64_t number = 0;  // of the message, among those of the group: 0, 1, ...
  int64_t rounds = 0;  // that the group has ended before it sent the message
  int64_t weight = 0;  // of the difference in the mean: inner steps of all ranks of the group since its last message
  std::array<int64_t, 3> unused = {};
  OuterOptimizer::Notes notes = {};

  static constexpr uint64_t kMark = 0x6E63726F756E6401;
};

inline constexpr int64_t kRoundHeaderBytes = sizeof(RoundHeader);
inline constexpr int64_t kMostRoundWeight = int64_t{1} << 40;  // Sums of weights are exact.

// uint8 [kRoundHeaderBytes + encoded.numel()] on the CPU: the header, then the encoded difference. `encoded`: uint8 on
// any device.
at::Tensor round_message(const RoundHeader& header, const at::Tensor& encoded);

// The header of a message. Throws CorruptInputError naming a number that cannot be right in message `number` of
// `group`.
RoundHeader header_of(const at::Tensor& message, int64_t group, int64_t number);

// The encoded difference in a message: a view.
at::Tensor encoded_in(const at::Tensor& message);

// The groups that take part in a round, as the store has them: "0,2,5".
std::string text_of_groups(const std::vector<int64_t>& groups);
// Its inverse. Throws CorruptInputError unless these are at least `quorum` different numbers in 0..groups - 1, in
// ascending order.
std::vector<int64_t> parse_groups(std::string_view text, int64_t groups, int64_t quorum);

}  // namespace narrowcast
