// Codecs of CPU tensors.
#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/collectives/all_reduce/codec/sent_residuals.h"
#include "ops/collectives/all_reduce/codec/sparse_codec.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/cpu/variable/variable_message.h"
#include "ops/cpu/wire/element_copy.h"
#include "ops/cpu/wire/wire_kernels.h"
#include "ops/operators/meta.h"

namespace narrowcast::collectives {
namespace {

using codec::wire::Rounding;
using cpu::for_wire_parts;
using cpu::kWireGrain;

using Tile = std::array<float, kWireGrain>;

// Calls body(first element, elements) for each grain, so that a grain's intermediate values stay in the L1 cache.
template <class Body>
void for_grains(int64_t n, const Body& body) {
  for_wire_parts(n, [&](int64_t part, int64_t part_numel) {
    for (int64_t first = part; first < part + part_numel; first += kWireGrain) {
      body(first, std::min(kWireGrain, part + part_numel - first));
    }
  });
}

// Calls body(first element, elements) for parts of the slice whose elements are contiguous: for grains if the order
// is permuted. A fixed format has a permuted order only between the ranks of a node, for arrays that are not float32.
template <class Body>
void for_contiguous_parts(const ArraySlice& slice, const Body& body) {
  if (slice.order.is_identity()) {
    for_wire_parts(slice.range.numel, body);
  } else {
    for_grains(slice.range.numel, body);
  }
}

// Elements of the slice.
template <class T>
cpu::WireElements<T> elements_of(const ArraySlice& slice, int64_t first, int64_t n) {
  auto* const array = static_cast<T*>(slice.array.mutable_data_ptr());
  return {array, n, slice.order, slice.range.begin + first};
}

// Pointer to element `first` and the rest of its grain.
template <class T>
T* grain_of(const ArraySlice& slice, int64_t first) {
  return elements_of<T>(slice, first, 0).grain(0);
}

// Prefetches a later grain of a permuted array. In any other array the processor detects the stream itself.
template <class T>
void prefetch_next(const ArraySlice& slice, int64_t first) {
  if (slice.order.is_identity()) {
    return;
  }
  constexpr int64_t kInCacheLine = 64 / static_cast<int64_t>(sizeof(T));
  const T* const upcoming = elements_of<const T>(slice, 0, slice.range.numel).upcoming(first);
  for (int64_t i = 0; upcoming != nullptr && i < kWireGrain; i += kInCacheLine) {
    hwy::Prefetch(upcoming + i);
  }
}

// Elements from `first` on, plus their residuals if not null, as float32: in place, or in `tile`.
template <class T>
const float* load(const ArraySlice& slice, int64_t first, const float* residual, int64_t n, Tile& tile) {
  prefetch_next<T>(slice, first);
  const T* const x = grain_of<const T>(slice, first);
  if constexpr (std::is_same_v<T, float>) {
    if (residual == nullptr) {
      return x;
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    tile[i] = static_cast<float>(x[i]) + (residual == nullptr ? -0.0F : residual[i]);  // Adding -0 changes no value.
  }
  return tile.data();
}

template <class T>
void store(const Tile& tile, int64_t n, T* x) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] = static_cast<T>(tile[i]);
  }
}

// Calls body(first element, elements, their values plus their residuals) for each grain.
template <class T, class Body>
void for_sums(const ArraySlice& slice, const Body& body) {
  for_grains(slice.range.numel, [&](int64_t first, int64_t n) {
    Tile tile;
    body(first, n, load<T>(slice, first, from(slice.residual, first), n, tile));
  });
}

// Writes a slice that is not float32, grain by grain: read(first element, elements, tile) gives its values.
template <class T, class Read>
void store_grains(const ArraySlice& slice, const Read& read) {
  for_grains(slice.range.numel, [&](int64_t first, int64_t n) {
    Tile tile;
    read(first, n, tile);
    store(tile, n, grain_of<T>(slice, first));
  });
}

// Formats whose messages can be split: the message of a part of the slice is a part of the slice's message. So
// every part is encoded, decoded and averaged by itself, in one pass over memory.
class FixedCodec final : public WireCodec {
 public:
  explicit FixedCodec(WireFormat format) : WireCodec(format), kernels_(cpu::wire_kernels(format)) {}

  void encode(const Rounding& rounding, const ArraySlice& slice, uint8_t* message) const override {
    meta::visit_float(slice.array.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      if (slice.residual != nullptr) {
        for_sums<T>(slice, [&](int64_t first, int64_t n, const float* sum) {
          encode_grain(rounding.at(first), sum, n, {.kept = slice.residual + first}, bytes_at(message, first));
        });
        return;
      }
      const auto encode = std::get<cpu::WireEncode<T>>(kernels_.encode);
      for_contiguous_parts(slice, [&](int64_t first, int64_t n) {
        encode({grain_of<const T>(slice, first), n}, rounding.at(first), bytes_at(message, first));
      });
    });
  }

  void decode(const uint8_t* message, const ArraySlice& slice) const override {
    if (slice.array.scalar_type() == at::kFloat) {
      for_contiguous_parts(slice, [&](int64_t first, int64_t n) {
        kernels_.decode(bytes_at(message, first), n, grain_of<float>(slice, first));
      });
      return;
    }
    meta::visit_float(slice.array.scalar_type(), [&](auto zero) {
      store_grains<decltype(zero)>(slice, [&](int64_t first, int64_t n, Tile& tile) {
        kernels_.decode(bytes_at(message, first), n, tile.data());
      });
    });
  }

  void reduce(const RankMessages& messages, const ArraySlice& slice, Reduction reduction) const override {
    const auto average = [&](int64_t first, int64_t n, const float* own, float* mean) {
      const RankMessages parts = parts_from(messages, first);
      kernels_.average({parts.data(), std::ssize(parts), own, n, reduction}, mean);
    };
    if (slice.array.scalar_type() == at::kFloat) {
      for_contiguous_parts(slice, [&](int64_t first, int64_t n) {
        average(first, n, grain_of<const float>(slice, first), grain_of<float>(slice, first));
      });
      return;
    }
    meta::visit_float(slice.array.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      store_grains<T>(slice, [&](int64_t first, int64_t n, Tile& mean) {
        Tile own;
        average(first, n, load<T>(slice, first, nullptr, n, own), mean.data());
      });
    });
  }

  void average_and_encode(const Rounding& rounding, const RankMessages& messages, const ArraySlice& slice,
                          float* mean_residual, uint8_t* message) const override {
    const SentResiduals residuals{mean_residual, slice.residual};
    if (slice.array.scalar_type() == at::kFloat && residuals.are_none()) {
      for_contiguous_parts(slice, [&](int64_t first, int64_t n) {
        const RankMessages parts = parts_from(messages, first);
        kernels_.average_encode({parts.data(), std::ssize(parts), grain_of<const float>(slice, first), n},
                                rounding.at(first), bytes_at(message, first));
      });
      return;
    }
    meta::visit_float(slice.array.scalar_type(), [&](auto zero) {
      for_sums<decltype(zero)>(slice, [&](int64_t first, int64_t n, const float* own) {
        Tile mean;
        const RankMessages parts = parts_from(messages, first);
        kernels_.average({parts.data(), std::ssize(parts), own, n}, mean.data());
        add(from(mean_residual, first), n, mean.data());
        encode_grain(rounding.at(first), mean.data(), n, residuals.at(first), bytes_at(message, first));
      });
    });
  }

 private:
  // Encodes a grain, then updates its residuals.
  void encode_grain(const Rounding& rounding, const float* sent, int64_t n, const SentResiduals& residuals,
                    uint8_t* bytes) const {
    std::get<cpu::WireEncode<float>>(kernels_.encode)({sent, n}, rounding, bytes);
    if (!residuals.are_none()) {
      Tile decoded;
      kernels_.decode(bytes, n, decoded.data());
      residuals.update(sent, n, decoded.data());
    }
  }

  // The message from element `first` on.
  template <class Byte>
  Byte* bytes_at(Byte* message, int64_t first) const {
    return message + kernels_.first_byte(first);
  }

  RankMessages parts_from(const RankMessages& messages, int64_t first) const {
    RankMessages parts(messages);
    for (const uint8_t*& part : parts) {
      part = part == nullptr ? nullptr : bytes_at(part, first);
    }
    return parts;
  }

  const cpu::WireKernels& kernels_;  // Kernels for the instruction set that was in use when this codec was made.
};

// Formats whose messages have one step for all elements: the slice is measured before any part of it can be encoded,
// so that it is read twice. A mean of several ranks waits in an array. Kernels take elements in any order.
class VariableCodec final : public WireCodec {
 public:
  explicit VariableCodec(WireFormat format)
      : WireCodec(format), bits_(static_cast<int>(codec::wire::code_bits(format))) {}

  void encode(const Rounding& rounding, const ArraySlice& slice, uint8_t* message) const override {
    const int64_t numel = slice.range.numel;
    cpu::VariableWriter writer(bits_, rounding, numel, message);
    meta::visit_float(slice.array.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      if (slice.residual != nullptr) {
        for_sums<T>(slice, [&](int64_t first, int64_t n, const float* sum) {
          writer.measure(first, cpu::WireInput<float>{sum, n});
        });
        writer.settle();
        for_sums<T>(slice, [&](int64_t first, int64_t n, const float* sum) {
          write_grain(writer, first, sum, n, {.kept = slice.residual + first});
        });
        return;
      }
      for_wire_parts(numel,
                     [&](int64_t first, int64_t n) { writer.measure(first, elements_of<const T>(slice, first, n)); });
      writer.settle();
      for_wire_parts(numel,
                     [&](int64_t first, int64_t n) { writer.write(first, elements_of<const T>(slice, first, n)); });
    });
  }

  void decode(const uint8_t* message, const ArraySlice& slice) const override {
    const cpu::VariableReader reader(bits_, message, slice.range.numel);
    if (slice.array.scalar_type() == at::kFloat) {
      for_wire_parts(slice.range.numel,
                     [&](int64_t first, int64_t n) { reader.decode(first, elements_of<float>(slice, first, n)); });
      return;
    }
    meta::visit_float(slice.array.scalar_type(), [&](auto zero) {
      store_grains<decltype(zero)>(slice, [&](int64_t first, int64_t n, Tile& tile) {
        reader.decode(first, {tile.data(), n});
      });
    });
  }

  void reduce(const RankMessages& messages, const ArraySlice& slice, Reduction reduction) const override {
    const cpu::VariableRankReader ranks(bits_, messages, slice.range.numel, reduction);
    if (slice.array.scalar_type() == at::kFloat) {
      for_wire_parts(slice.range.numel, [&](int64_t first, int64_t n) {
        ranks.average(first, elements_of<const float>(slice, first, n), elements_of<float>(slice, first, n));
      });
      return;
    }
    meta::visit_float(slice.array.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      store_grains<T>(slice, [&](int64_t first, int64_t n, Tile& mean) {
        Tile own;
        ranks.average(first, {load<T>(slice, first, nullptr, n, own), n}, {mean.data(), n});
      });
    });
  }

  void average_and_encode(const Rounding& rounding, const RankMessages& messages, const ArraySlice& slice,
                          float* mean_residual, uint8_t* message) const override {
    const int64_t numel = slice.range.numel;
    const cpu::VariableRankReader ranks(bits_, messages, numel, Reduction::kMean);
    cpu::VariableWriter writer(bits_, rounding, numel, message);
    const std::unique_ptr<float[]> means(new float[static_cast<size_t>(numel)]);
    const SentResiduals residuals{mean_residual, slice.residual};
    if (slice.array.scalar_type() == at::kFloat && residuals.are_none()) {
      for_wire_parts(numel, [&](int64_t first, int64_t n) {
        ranks.average_and_measure(writer, first, elements_of<const float>(slice, first, n), {means.get() + first, n});
      });
    } else {
      meta::visit_float(slice.array.scalar_type(), [&](auto zero) {
        for_sums<decltype(zero)>(slice, [&](int64_t first, int64_t n, const float* own) {
          float* const mean = means.get() + first;
          ranks.average(first, {own, n}, {mean, n});
          add(from(mean_residual, first), n, mean);
          writer.measure(first, cpu::WireInput<float>{mean, n});
        });
      });
    }
    writer.settle();
    if (residuals.are_none()) {
      for_wire_parts(numel, [&](int64_t first, int64_t n) {
        writer.write(first, cpu::WireInput<float>{means.get() + first, n});
      });
    } else {
      for_grains(numel, [&](int64_t first, int64_t n) {
        write_grain(writer, first, means.get() + first, n, residuals.at(first));
      });
    }
  }

 private:
  // Writes the codes of a grain, then updates its residuals.
  static void write_grain(const cpu::VariableWriter& writer, int64_t first, const float* sent, int64_t n,
                          const SentResiduals& residuals) {
    writer.write(first, cpu::WireInput<float>{sent, n});
    if (!residuals.are_none()) {
      Tile decoded;
      writer.read_back(first, n, decoded.data());
      residuals.update(sent, n, decoded.data());
    }
  }

  const int bits_;
};

}  // namespace

std::unique_ptr<const WireCodec> make_wire_codec(WireFormat format, at::DeviceType device) {
  if (device == at::kCUDA) {
    return gpu::make_wire_codec(format);
  }
  if (codec::wire::is_sparse(format)) {
    return make_sparse_codec(format);
  }
  if (codec::wire::is_variable(format)) {
    return std::make_unique<VariableCodec>(format);
  }
  return std::make_unique<FixedCodec>(format);
}

void copy_slice(const ArraySlice& from, const ArraySlice& to) {
  for_wire_parts(from.range.numel, [&](int64_t first, int64_t n) {
    cpu::copy_elements(elements_of<const float>(from, first, n), elements_of<float>(to, first, n));
  });
}

}  // namespace narrowcast::collectives
