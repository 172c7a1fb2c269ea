// Wire formats on the CPU: passes tensors as pointers, and divides the work among threads.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include <narrowcast/wire_format.h>
#include "ops/cpu/message/messages.h"
#include "ops/operators/meta.h"

namespace narrowcast::cpu {
namespace {

at::Tensor encode(const at::Tensor& x, std::string_view format_name, std::optional<int64_t> seed, int64_t step,
                  int64_t offset) {
  at::Tensor bytes = meta::encode(x, format_name, seed, step, offset);
  const WireFormat format = parse_wire_format(format_name);
  const at::Tensor source = x.contiguous();
  auto* const message = bytes.mutable_data_ptr<uint8_t>();
  const Rounding rounding{seed.has_value(), static_cast<uint64_t>(seed.value_or(0)), static_cast<uint64_t>(step),
                          static_cast<uint64_t>(offset)};
  meta::visit_float(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const auto* const elements = source.const_data_ptr<T>();
    visit_messages(format, [&](const auto& messages) {
      using Messages = std::decay_t<decltype(messages)>;
      auto writer = messages.writer(rounding, x.numel(), message);
      write_parts<Messages>(
          writer, [&](const auto& body) { for_wire_parts(x.numel(), body); },
          [&](int64_t first, int64_t n) {
            return WireInput<T>{elements + first, n};
          });
    });
  });
  return bytes;
}

at::Tensor decode(const at::Tensor& bytes, std::string_view format_name, c10::SymInt numel) {
  at::Tensor decoded = meta::decode(bytes, format_name, numel);
  const WireFormat format = parse_wire_format(format_name);
  const at::Tensor source = bytes.contiguous();
  const auto* const message = source.const_data_ptr<uint8_t>();
  auto* const out = decoded.mutable_data_ptr<float>();
  visit_messages(format, [&](const auto& messages) {
    const auto reader = messages.reader(message, decoded.numel());
    for_wire_parts(decoded.numel(), [&](int64_t first, int64_t n) { reader.decode(first, {out + first, n}); });
  });
  return decoded;
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CPU, m) {
  m.impl("encode", &encode);
  m.impl("decode", &decode);
}

}  // namespace narrowcast::cpu
