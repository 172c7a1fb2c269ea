#include "ops/cpu/wire/message_parts.h"

#include "ops/codec/wire_format.h"

namespace narrowcast::cpu {

int64_t first_byte(WireFormat format, int64_t first) {
  return codec::wire::visit_fixed(format, [first](auto type) -> int64_t {
    using Format = decltype(type);
    return first / Format::kBlock * Format::kBlockBytes;
  });
}

MessageWriter::MessageWriter(WireFormat format, const Rounding& rounding, int64_t n, uint8_t* bytes)
    : format_(format), rounding_(rounding), bytes_(bytes) {
  if (codec::wire::is_variable(format)) {
    variable_.emplace(static_cast<int>(codec::wire::code_bits(format)), rounding, n, bytes);
  }
}

void MessageWriter::read_back(int64_t first, int64_t n, float* out) const {
  variable_ ? variable_->read_back(first, n, out) : wire_decode(format_, bytes_ + first_byte(format_, first), n, out);
}

MessageReader::MessageReader(WireFormat format, const uint8_t* bytes, int64_t n) : format_(format), bytes_(bytes) {
  if (codec::wire::is_variable(format)) {
    variable_.emplace(static_cast<int>(codec::wire::code_bits(format)), bytes, n);
  }
}

void MessageReader::decode(int64_t first, WireOutput out) const {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(variable_ || out.is_neighbours());
  variable_ ? variable_decode(variable_->source(), first, out)
            : wire_decode(format_, bytes_ + first_byte(format_, first), out.n, out.grain(0));
}

RankReader::RankReader(WireFormat format, const std::vector<const uint8_t*>& messages, int64_t n)
    : format_(format), messages_(messages) {
  if (!codec::wire::is_variable(format)) {
    return;
  }
  for (const uint8_t* const message : messages) {
    variable_.emplace_back(static_cast<int>(codec::wire::code_bits(format)), message, message == nullptr ? 0 : n);
    sources_.push_back(variable_.back().source());
  }
  for (size_t r = 0; r < messages.size(); ++r) {
    source_of_rank_.push_back(messages[r] == nullptr ? nullptr : &sources_[r]);
  }
}

std::vector<const uint8_t*> RankReader::parts_from(int64_t first) const {
  std::vector<const uint8_t*> parts(messages_);
  for (const uint8_t*& part : parts) {
    part = part == nullptr ? nullptr : part + first_byte(format_, first);
  }
  return parts;
}

VariableParts RankReader::variable_parts(int64_t first, WireInput<float> own) const {
  return {source_of_rank_.data(), static_cast<int64_t>(messages_.size()), own, first};
}

void RankReader::average(int64_t first, WireInput<float> own, WireOutput mean) const {
  if (!source_of_rank_.empty()) {
    return variable_average(variable_parts(first, own), mean);
  }
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(own.is_neighbours() && mean.is_neighbours());
  wire_average(format_,
               {parts_from(first).data(), static_cast<int64_t>(messages_.size()),
                own.x == nullptr ? nullptr : own.grain(0), mean.n},
               mean.grain(0));
}

void RankReader::average_and_measure(MessageWriter& writer, int64_t first, WireInput<float> own,
                                     WireOutput mean) const {
  writer.variable_->measure_mean(first, variable_parts(first, own), mean);
}

void RankReader::average_to(const MessageWriter& writer, int64_t first, int64_t n, const float* own) const {
  const auto ranks = static_cast<int64_t>(messages_.size());
  wire_average_encode(format_, {parts_from(first).data(), ranks, own, n}, writer.rounding_.at(first),
                      writer.bytes_ + first_byte(writer.format_, first));
}

}  // namespace narrowcast::cpu
