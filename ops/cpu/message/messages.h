// Messages in any wire format, written and read in parts. The kind of format is determined once per message.
#pragma once

#include <cstdint>

#include <narrowcast/wire_formats.h>
#include "ops/codec/wire_format.h"
#include "ops/cpu/variable/variable_message.h"
#include "ops/cpu/wire/fixed_message.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::cpu {

// Returns body(messages), where `messages` is the format's FixedMessages or VariableMessages.
template <class Body>
decltype(auto) visit_messages(WireFormat format, const Body& body) {
  return codec::wire::is_variable(format) ? body(VariableMessages(format)) : body(FixedMessages(format));
}

// Writes a message in parts. for_parts(body) calls body(first, elements) for each part; input(first, elements) returns
// a part's elements.
template <class Messages, class ForParts, class Input>
void write_parts(typename Messages::Writer& writer, const ForParts& for_parts, const Input& input) {
  if constexpr (Messages::kMeasured) {
    for_parts([&](int64_t first, int64_t n) { writer.measure(first, input(first, n)); });
    writer.settle();
  }
  for_parts([&](int64_t first, int64_t n) { writer.write(first, input(first, n)); });
}

}  // namespace narrowcast::cpu
