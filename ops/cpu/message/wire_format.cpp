// Wire formats on the CPU: passes tensors as pointers, and divides the work among threads.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include <narrowcast/wire_format.h>
#include "ops/codec/wire_format.h"
#include "ops/cpu/sparse/sparse_kernels.h"
#include "ops/cpu/variable/variable_message.h"
#include "ops/cpu/wire/wire_kernels.h"
#include "ops/operators/meta.h"
#include "ops/operators/wire_format_meta.h"

namespace narrowcast::cpu {
namespace {

int bits_of(WireFormat format) { return static_cast<int>(codec::wire::code_bits(format)); }

template <class T>
void encode_fixed(WireFormat format, const Rounding& rounding, WireInput<T> input, uint8_t* message) {
  const WireKernels& kernels = wire_kernels(format);
  const auto encode = std::get<WireEncode<T>>(kernels.encode);
  for_wire_parts(input.n, [&](int64_t first, int64_t n) {
    encode({input.x + first, n}, rounding.at(first), message + kernels.first_byte(first));
  });
}

template <class T>
void encode_variable(WireFormat format, const Rounding& rounding, WireInput<T> input, uint8_t* message) {
  VariableWriter writer(bits_of(format), rounding, input.n, message);
  for_wire_parts(input.n, [&](int64_t first, int64_t n) { writer.measure(first, WireInput<T>{input.x + first, n}); });
  writer.settle();
  for_wire_parts(input.n, [&](int64_t first, int64_t n) { writer.write(first, WireInput<T>{input.x + first, n}); });
}

template <class T>
void encode_sparse(WireFormat format, WireInput<T> input, uint8_t* message) {
  const int per_mille = codec::wire::kept_per_mille(format);
  for_sparse_parts(per_mille, input.n, [&](int64_t first, int64_t n, int64_t byte) {
    sparse_encode(per_mille, input.x + first, n, message + byte);
  });
}

// The message of elements at `input`, in any format.
template <class T>
void encode_message(WireFormat format, const Rounding& rounding, WireInput<T> input, uint8_t* message) {
  if (codec::wire::is_sparse(format)) {
    encode_sparse(format, input, message);
  } else if (codec::wire::is_variable(format)) {
    encode_variable(format, rounding, input, message);
  } else {
    encode_fixed(format, rounding, input, message);
  }
}

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
    encode_message<T>(format, rounding, {source.const_data_ptr<T>(), x.numel()}, message);
  });
  return bytes;
}

at::Tensor decode(const at::Tensor& bytes, std::string_view format_name, c10::SymInt numel) {
  at::Tensor decoded = meta::decode(bytes, format_name, numel);
  const WireFormat format = parse_wire_format(format_name);
  const at::Tensor source = bytes.contiguous();
  const auto* const message = source.const_data_ptr<uint8_t>();
  auto* const out = decoded.mutable_data_ptr<float>();
  if (codec::wire::is_sparse(format)) {
    const int per_mille = codec::wire::kept_per_mille(format);
    for_sparse_parts(per_mille, decoded.numel(), [&](int64_t first, int64_t n, int64_t byte) {
      codec::wire::decode_sparse_block(per_mille, message + byte, n, out + first);
    });
  } else if (codec::wire::is_variable(format)) {
    const VariableReader reader(bits_of(format), message, decoded.numel());
    for_wire_parts(decoded.numel(), [&](int64_t first, int64_t n) { reader.decode(first, {out + first, n}); });
  } else {
    const WireKernels& kernels = wire_kernels(format);
    for_wire_parts(decoded.numel(), [&](int64_t first, int64_t n) {
      kernels.decode(message + kernels.first_byte(first), n, out + first);
    });
  }
  return decoded;
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CPU, m) {
  m.impl("encode", &encode);
  m.impl("decode", &decode);
}

}  // namespace narrowcast::cpu
