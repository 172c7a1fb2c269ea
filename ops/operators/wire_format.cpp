// Wire formats, the part that all devices share: the C++ functions, and encoded_size.
#include <narrowcast/wire_format.h>

#include <c10/core/SymInt.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/codec/wire_format.h"
#include "ops/operators/dispatch.h"
#include "ops/operators/wire_format_meta.h"

namespace narrowcast {
namespace {

using Encode = at::Tensor(const at::Tensor&, std::string_view, std::optional<int64_t>, int64_t, int64_t);
using Decode = at::Tensor(const at::Tensor&, std::string_view, c10::SymInt);

void check_format(WireFormat format) {
  TORCH_CHECK_VALUE(std::find(kWireFormats.begin(), kWireFormats.end(), format) != kWireFormats.end(), "format ",
                    static_cast<int64_t>(format), " is not a valid WireFormat");
}

// Computes with sizes, which are symbols while a program is traced.
c10::SymInt encoded_size_kernel(c10::SymInt numel, std::string_view format) {
  return meta::encoded_size(numel, format);
}

}  // namespace

std::string_view to_string(WireFormat format) {
  check_format(format);
  return codec::wire::name_of(format);
}

std::ostream& operator<<(std::ostream& stream, WireFormat format) { return stream << to_string(format); }

WireFormat parse_wire_format(std::string_view name) {
  for (const WireFormat format : kWireFormats) {
    if (name == codec::wire::name_of(format)) {
      return format;
    }
  }
  TORCH_CHECK_VALUE(false, "format: unknown name '", name, "'; known: ", wire_format_names());
}

std::string wire_format_names() {
  std::string names;
  for (const WireFormat format : kWireFormats) {
    names += (names.empty() ? "" : ", ") + std::string(codec::wire::name_of(format));
  }
  return names;
}

// Does not use the dispatcher, to be fast: hooks call this for every bucket and step.
int64_t encoded_size(int64_t numel, WireFormat format) {
  TORCH_CHECK_VALUE(numel >= 0, "numel must be at least 0, not ", numel);
  check_format(format);
  return codec::wire::visit(format, [&](auto type) { return codec::wire::encoded_size<decltype(type)>(numel); });
}

at::Tensor encode(const at::Tensor& x, WireFormat format, const EncodeOptions& options) {
  static const auto op = find_operator<Encode>("narrowcast::encode");
  check_defined(x, "x");
  return op.call(x, to_string(format), options.seed, options.step, options.offset);
}

at::Tensor decode(const at::Tensor& bytes, WireFormat format, int64_t numel) {
  static const auto op = find_operator<Decode>("narrowcast::decode");
  check_defined(bytes, "bytes");
  return op.call(bytes, to_string(format), numel);
}

// There is no tensor argument, and so no device. Such a call can reach few dispatch keys; the only one among them that
// also serves every device is CompositeExplicitAutograd.
TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd, m) { m.impl("encoded_size", &encoded_size_kernel); }

}  // namespace narrowcast
