#include "ops/collectives/wire/run_codec.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include <narrowcast/wire_format.h>
#include "ops/collectives/wire/gpu_run_codec.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {
namespace {

using codec::wire::Rounding;
using cpu::for_wire_parts;
using cpu::kWireGrain;

using Tile = std::array<float, kWireGrain>;

// Calls body(first element, elements) for every grain by itself: what is made of it stays in the first cache.
template <class Body>
void for_grains(int64_t n, const Body& body) {
  for_wire_parts(n, [&](int64_t part, int64_t part_numel) {
    for (int64_t first = part; first < part + part_numel; first += kWireGrain) {
      body(first, std::min(kWireGrain, part + part_numel - first));
    }
  });
}

template <class Body>
void dispatch(const at::Tensor& array, const Body& body) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, array.scalar_type(), "quantized_all_reduce",
                                  [&] { body(scalar_t()); });
}

template <class T>
T* elements_of(const ArrayRun& run) {
  return static_cast<T*>(run.array.mutable_data_ptr()) + run.run.begin;
}

// x and its residual as float32: where they are, or in `tile`.
template <class T>
const float* load(const T* x, const float* residual, int64_t n, Tile& tile) {
  if constexpr (std::is_same_v<T, float>) {
    if (residual == nullptr) {
      return x;
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    tile[i] = static_cast<float>(x[i]) + (residual == nullptr ? -0.0F : residual[i]);  // -0 changes no number.
  }
  return tile.data();
}

template <class T>
void store(const Tile& tile, int64_t n, T* x) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] = static_cast<T>(tile[i]);
  }
}

// Replaces the residual by what the message of `sent` lacks.
void keep_residual(WireFormat format, const float* sent, const uint8_t* message, int64_t n, float* residual) {
  Tile received;
  cpu::wire_decode(format, message, n, received.data());
  for (int64_t i = 0; i < n; ++i) {
    const float lacking = sent[i] - received[i];
    residual[i] = std::isfinite(lacking) ? lacking : residual[i];
  }
}

// The messages of all ranks from element `first` on.
RankMessages advanced(const RankMessages& messages, WireFormat format, int64_t first) {
  RankMessages parts(messages);
  for (const uint8_t*& part : parts) {
    part = part == nullptr ? nullptr : part + encoded_size(first, format);
  }
  return parts;
}

template <class T>
void encode_with_residual(const WireCoding& coding, const ArrayRun& run, uint8_t* message) {
  for_grains(run.run.numel, [&](int64_t first, int64_t n) {
    Tile tile;
    const float* const sum = load(elements_of<T>(run) + first, run.residual + first, n, tile);
    uint8_t* const bytes = message + encoded_size(first, coding.format);
    cpu::wire_encode(coding.format, cpu::WireInput<float>{sum, n}, coding.rounding.at(first), bytes);
    keep_residual(coding.format, sum, bytes, n, run.residual + first);
  });
}

template <class T>
void average_and_encode_grains(const WireCoding& coding, const RankMessages& messages, const ArrayRun& run,
                               float* mean_residual, uint8_t* message) {
  for_grains(run.run.numel, [&](int64_t first, int64_t n) {
    const RankMessages parts = advanced(messages, coding.format, first);
    float* const own_residual = run.residual == nullptr ? nullptr : run.residual + first;
    Tile own;
    Tile mean;
    const float* const own_part = load(elements_of<T>(run) + first, own_residual, n, own);
    cpu::wire_average(coding.format, {parts.data(), static_cast<int64_t>(parts.size()), own_part, n}, mean.data());
    if (own_residual != nullptr) {
      std::fill_n(own_residual, n, 0.0F);
    }
    uint8_t* const bytes = message + encoded_size(first, coding.format);
    const float* const sum = mean_residual == nullptr ? mean.data() : load(mean.data(), mean_residual + first, n, mean);
    cpu::wire_encode(coding.format, cpu::WireInput<float>{sum, n}, coding.rounding.at(first), bytes);
    if (mean_residual != nullptr) {
      keep_residual(coding.format, sum, bytes, n, mean_residual + first);
    }
  });
}

// In one pass, without tiles.
void average_and_encode_floats(const WireCoding& coding, const RankMessages& messages, const ArrayRun& run,
                               uint8_t* message) {
  for_wire_parts(run.run.numel, [&](int64_t first, int64_t n) {
    const RankMessages parts = advanced(messages, coding.format, first);
    cpu::wire_average_encode(coding.format,
                             {parts.data(), static_cast<int64_t>(parts.size()), elements_of<float>(run) + first, n},
                             coding.rounding.at(first), message + encoded_size(first, coding.format));
  });
}

}  // namespace

void encode_run(const WireCoding& coding, const ArrayRun& run, uint8_t* message) {
  if (run.array.is_cuda()) {
    return gpu::encode_run(coding, run, message);
  }
  dispatch(run.array, [&](auto zero) {
    using T = decltype(zero);
    if (run.residual != nullptr) {
      encode_with_residual<T>(coding, run, message);
      return;
    }
    for_wire_parts(run.run.numel, [&](int64_t first, int64_t n) {
      cpu::wire_encode(coding.format, cpu::WireInput<T>{elements_of<T>(run) + first, n}, coding.rounding.at(first),
                       message + encoded_size(first, coding.format));
    });
  });
}

void decode_run(WireFormat format, const uint8_t* message, const ArrayRun& run) {
  if (run.array.is_cuda()) {
    return gpu::decode_run(format, message, run);
  }
  if (run.array.scalar_type() == at::kFloat) {
    for_wire_parts(run.run.numel, [&](int64_t first, int64_t n) {
      cpu::wire_decode(format, message + encoded_size(first, format), n, elements_of<float>(run) + first);
    });
    return;
  }
  dispatch(run.array, [&](auto zero) {
    for_grains(run.run.numel, [&](int64_t first, int64_t n) {
      Tile tile;
      cpu::wire_decode(format, message + encoded_size(first, format), n, tile.data());
      store(tile, n, elements_of<decltype(zero)>(run) + first);
    });
  });
}

void average_runs(WireFormat format, const RankMessages& messages, const ArrayRun& run) {
  if (run.array.is_cuda()) {
    return gpu::average_runs(format, messages, run);
  }
  const auto ranks = static_cast<int64_t>(messages.size());
  if (run.array.scalar_type() == at::kFloat) {
    for_wire_parts(run.run.numel, [&](int64_t first, int64_t n) {
      const RankMessages parts = advanced(messages, format, first);
      float* const elements = elements_of<float>(run) + first;
      cpu::wire_average(format, {parts.data(), ranks, elements, n}, elements);
    });
    return;
  }
  dispatch(run.array, [&](auto zero) {
    for_grains(run.run.numel, [&](int64_t first, int64_t n) {
      const RankMessages parts = advanced(messages, format, first);
      auto* const elements = elements_of<decltype(zero)>(run) + first;
      Tile own;
      Tile mean;
      cpu::wire_average(format, {parts.data(), ranks, load(elements, nullptr, n, own), n}, mean.data());
      store(mean, n, elements);
    });
  });
}

void average_and_encode_runs(const WireCoding& coding, const RankMessages& messages, const ArrayRun& run,
                             float* mean_residual, uint8_t* message) {
  if (run.array.is_cuda()) {
    return gpu::average_and_encode_runs(coding, messages, run, mean_residual, message);
  }
  if (run.array.scalar_type() == at::kFloat && run.residual == nullptr && mean_residual == nullptr) {
    average_and_encode_floats(coding, messages, run, message);
    return;
  }
  dispatch(run.array, [&](auto zero) {
    average_and_encode_grains<decltype(zero)>(coding, messages, run, mean_residual, message);
  });
}

}  // namespace narrowcast::collectives
