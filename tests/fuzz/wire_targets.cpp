// Messages of other ranks in every wire format, the announcements before them, and numbers that are encoded to such
// messages.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/codec/sparse_top.h"
#include "ops/codec/wire_format.h"
#include "ops/codec/wire_message.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/comm/groups/agree.h"
#include "tests/fuzz/target.h"

namespace narrowcast::fuzz {
namespace {

// A whole block of the largest size, and a part of another one.
constexpr int64_t kMostElements = codec::wire::kSparseBlock + 70;

// The first two bytes are the number of elements. The rest is the message, padded with zeros or cut to its size, and it
// ends where its memory ends.
at::Tensor message_of(std::string_view input, int64_t numel, WireFormat format) {
  at::Tensor message = at::empty({encoded_size(numel, format)}, at::kByte);
  message.zero_();
  const size_t size = std::min<size_t>(input.size(), static_cast<size_t>(message.numel()));
  std::copy_n(input.data(), size, reinterpret_cast<char*>(message.mutable_data_ptr<uint8_t>()));
  return message;
}

// Decodes the message, and averages it with itself and a rank's own numbers into the message of a mean.
void read_message(std::string_view input, WireFormat format) {
  if (input.size() < 2) return;
  uint16_t number = 0;
  std::memcpy(&number, input.data(), sizeof(number));
  const int64_t numel = number % (kMostElements + 1);
  const at::Tensor message = message_of(input.substr(2), numel, format);
  const at::Tensor decoded = decode(message, format, numel);
  if (numel == 0) return;
  const uint8_t* const bytes = message.const_data_ptr<uint8_t>();
  const at::Tensor mean = at::empty_like(message);
  const collectives::ArraySlice slice{decoded, {0, numel}, nullptr};
  collectives::make_wire_codec(format, at::kCPU)
      ->average_and_encode({}, {bytes, nullptr, bytes}, slice, nullptr, mean.mutable_data_ptr<uint8_t>());
  collectives::make_wire_codec(format, at::kCPU)->average({bytes, nullptr, bytes}, slice);
  decode(mean, format, numel);
}

std::vector<std::string> messages(WireFormat format) {
  std::vector<std::string> seeds;
  for (const int64_t numel : {1, 33, 1000}) {
    const at::Tensor message = encode(at::arange(numel, at::kFloat).mul(0.01), format);
    const auto number = static_cast<uint16_t>(numel);
    std::string seed(reinterpret_cast<const char*>(&number), sizeof(number));
    seed.append(reinterpret_cast<const char*>(message.const_data_ptr<uint8_t>()), static_cast<size_t>(message.numel()));
    seeds.push_back(std::move(seed));
  }
  return seeds;
}

// Encodes at most a sparse block of numbers with any bits in a variable or sparse format. The plain codec's bytes, to
// nearest and at random, must decode to numbers, or be a message of NaN.
void write_numbers(std::string_view input, WireFormat format) {
  const auto numel = std::min(kMostElements, static_cast<int64_t>(input.size() / sizeof(float)));
  const at::Tensor numbers = at::empty({numel}, at::kFloat);
  // Not memcpy, which does not accept a null pointer; the pointer of 0 numbers is null.
  std::copy_n(input.data(), numbers.nbytes(), reinterpret_cast<char*>(numbers.mutable_data_ptr<float>()));
  for (const bool stochastic : {false, true}) {
    constexpr int64_t kSeed = 7;
    const at::Tensor message = encode(numbers, format, {.seed = stochastic ? std::make_optional(kSeed) : std::nullopt});
    std::vector<uint8_t> plain(static_cast<size_t>(message.numel()));
    codec::wire::visit(format, [&](auto type) {
      codec::wire::encode<decltype(type)>(numbers.const_data_ptr<float>(), numel,
                                          {stochastic, static_cast<uint64_t>(kSeed), 0, 0}, plain.data());
    });
    TORCH_INTERNAL_ASSERT(std::equal(plain.begin(), plain.end(), message.const_data_ptr<uint8_t>()));
    const at::Tensor is_nan = decode(message, format, numel).isnan();
    TORCH_INTERNAL_ASSERT(is_nan.all().item<bool>() || !is_nan.any().item<bool>());
  }
}

std::vector<std::string> numbers() {
  std::vector<std::string> seeds;
  for (const int64_t numel : {1, 33, 1100}) {
    const at::Tensor x = at::arange(numel, at::kFloat).mul(-0.07).exp().mul(at::arange(numel).remainder(3).sub(1));
    seeds.emplace_back(reinterpret_cast<const char*>(x.const_data_ptr<float>()), x.nbytes());
  }
  return seeds;
}

collectives::Announcement announcement() {
  return {.call = "call", .entries = {{"format", "int8_b128"}, {"numel of x", "7"}}, .numbers = {3, -1}};
}

// The announcements of three ranks. The input is the last rank's message; the others' messages are valid.
void read_announcement(std::string_view input) {
  const std::string usual = collectives::to_message(announcement());
  const auto read = collectives::from_message(input);
  if (read) {
    const std::string_view padding = input.substr(collectives::to_message(*read).size());
    TORCH_INTERNAL_ASSERT(input.starts_with(collectives::to_message(*read)), "another message has the same content");
    TORCH_INTERNAL_ASSERT(padding.find_first_not_of('\0') == std::string_view::npos, "bytes follow the message");
  }
  try {
    collectives::check_announcements(0, "call", {usual, usual, input});
  } catch (const c10::TypeError&) {
    return;  // The error for a refusal with a wrong type, which run_target does not accept.
  }
  TORCH_INTERNAL_ASSERT(read && read->call == "call" && !read->refusal);
  collectives::Announcement without_numbers = announcement();
  without_numbers.numbers = read->numbers;
  TORCH_INTERNAL_ASSERT(input.starts_with(collectives::to_message(without_numbers)), "the difference was not found");
}

std::vector<std::string> announcements() {
  collectives::Announcement other = announcement();
  other.entries.push_back({"format", "\x1b[2J"});
  return {collectives::to_message(announcement()), collectives::to_message(announcement()) + std::string(100, '\0'),
          collectives::to_message(other),
          collectives::to_message({.call = "call", .refusal = collectives::Refusal{false, "x is sparse"}}),
          collectives::to_message({.call = "call", .refusal = collectives::Refusal{true, std::string(2000, 'x')}})};
}

}  // namespace

std::vector<Target> wire_targets() {
  std::vector<Target> list{{"announcement", read_announcement, announcements}};
  for (const WireFormat format : kWireFormats) {
    list.push_back({"wire_" + std::string(to_string(format)),
                    [format](std::string_view input) { read_message(input, format); },
                    [format] { return messages(format); }});
    if (!codec::wire::can_be_split(format)) {
      list.push_back({"numbers_" + std::string(to_string(format)),
                      [format](std::string_view input) { write_numbers(input, format); }, numbers});
    }
  }
  return list;
}

}  // namespace narrowcast::fuzz
