// One thread's share of the products of a few rows and a few outputs' codes, summed in float32 directly from the codes;
// and of scaling the products of widened codes. Tests compile this file for the CPU.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/cuda/launch/rows.h"
#include "ops/cuda/launch/vectors.h"
#include "ops/cuda/weight_only_int8/linear.h"

namespace narrowcast::cuda {

// Outputs that a warp sums together, which halves the reads of the rows.
inline constexpr int kOutputsOfWarp = 2;

// Codes of one load.
inline constexpr int kCodes = kPackBytes;

// Sums of a few rows' products with these outputs' codes.
template <int kRows>
struct Products {
  float of[kRows][kOutputsOfWarp] = {};
};

// Pointers to the rows and outputs of a warp; after the last row or output they repeat it.
template <class T, int kRows>
struct ProductTerms {
  const T* x[kRows];
  const int8_t* codes[kOutputsOfWarp];
  int64_t inputs;
};

// 16 codes of each output, as words.
struct CodeWords {
  Pack<uint32_t, kCodes / 4> of[kOutputsOfWarp];
};

// 16 inputs of a row.
template <class T>
struct Inputs {
  static constexpr int kCount = kPackBytes / static_cast<int>(sizeof(T));
  Pack<T, kCount> of[kCodes / kCount];

  NARROWCAST_HOST_DEVICE static Inputs load(const T* x) {
    Inputs inputs;
    NARROWCAST_UNROLL
    for (int i = 0; i < kCodes / kCount; ++i) inputs.of[i] = load_pack<kCount, true>(x + i * kCount);
    return inputs;
  }

  NARROWCAST_HOST_DEVICE float at(int i) const { return static_cast<float>(of[i / kCount].values[i % kCount]); }
};

// 16 codes of each output as float32.
struct Weights {
  float of[kOutputsOfWarp][kCodes];

  NARROWCAST_HOST_DEVICE explicit Weights(const CodeWords& codes) {
    NARROWCAST_UNROLL
    for (int o = 0; o < kOutputsOfWarp; ++o) {
      NARROWCAST_UNROLL
      for (int i = 0; i < kCodes; ++i) of[o][i] = signed_byte(codes.of[o].values[i / 4], i % 4);
    }
  }
};

// Adds a row's products with 16 codes.
template <class T>
NARROWCAST_HOST_DEVICE inline void add_products(const Inputs<T>& inputs, const Weights& weights,
                                                float (&products)[kOutputsOfWarp]) {
  NARROWCAST_UNROLL
  for (int i = 0; i < kCodes; ++i) {
    const float value = inputs.at(i);
    NARROWCAST_UNROLL
    for (int o = 0; o < kOutputsOfWarp; ++o) products[o] = std::fma(value, weights.of[o][i], products[o]);
  }
}

// Adds the products of inputs first to first + 15.
template <class T, int kRows>
NARROWCAST_HOST_DEVICE inline void add_pack(const ProductTerms<T, kRows>& terms, int64_t first, const CodeWords& codes,
                                            Products<kRows>& products) {
  const Weights weights(codes);
  NARROWCAST_UNROLL
  for (int row = 0; row < kRows; ++row) {
    add_products(Inputs<T>::load(terms.x[row] + first), weights, products.of[row]);
  }
}

// This lane's share, if all rows and codes begin at multiples of 16 bytes and the number of inputs is a multiple of 16.
// Codes come from `source`, from which they are requested Source::kStages packs ahead. request(stage, codes of both
// outputs) starts loading them, or nothing if the first pointer is null. take(stage) waits for the oldest request.
template <class Source, class T, int kRows>
NARROWCAST_HOST_DEVICE inline Products<kRows> sum_aligned_products(const ProductTerms<T, kRows>& terms, Lane lane,
                                                                   Source& source) {
  const int64_t packs = terms.inputs / kCodes;
  const auto request = [&](int stage, int64_t pack) {
    const int64_t first = pack * kCodes;
    source.request(stage, pack < packs ? terms.codes[0] + first : nullptr, terms.codes[1] + first);
  };
  for (int stage = 0; stage < Source::kStages; ++stage) request(stage, lane.rank + int64_t{stage} * lane.team);
  Products<kRows> products;
  int stage = 0;
  for (int64_t pack = lane.rank; pack < packs; pack += lane.team) {
    add_pack(terms, pack * kCodes, source.take(stage), products);
    request(stage, pack + int64_t{Source::kStages} * lane.team);
    stage = (stage + 1) % Source::kStages;
  }
  return products;
}

// This lane's share, for any alignment and number of inputs. Codes are read wide, inputs one by one.
template <class T, int kRows>
NARROWCAST_HOST_DEVICE inline Products<kRows> sum_products(const ProductTerms<T, kRows>& terms, Lane lane) {
  constexpr int64_t kMost = int64_t{1} << 30;  // The most elements that visit_part can count.
  Products<kRows> products;
  for (int64_t first = 0; first < terms.inputs; first += kMost) {
    const int64_t left = terms.inputs - first;
    NARROWCAST_UNROLL
    for (int o = 0; o < kOutputsOfWarp; ++o) {
      visit_part<1>(terms.codes[o] + first, static_cast<int>(left < kMost ? left : kMost), lane,
                    [&](int i, int8_t code) {
                      NARROWCAST_UNROLL
                      for (int row = 0; row < kRows; ++row) {
                        const auto value = static_cast<float>(terms.x[row][first + i]);
                        products.of[row][o] = std::fma(value, static_cast<float>(code), products.of[row][o]);
                      }
                    });
    }
  }
  return products;
}

// Conversion of the products of the widened codes, [rows, outputs] float32, to outputs of the layer.
template <class T, class S>
struct ScaleProducts {
  static constexpr int64_t kPart = 4096;

  ProductColumns columns;
  OutputScales<S> scales;
  T* y;              // [rows, outputs] of the layer
  int64_t of_layer;  // outputs

  // Converts a part of a row of products.
  NARROWCAST_HOST_DEVICE void operator()(RowPart part, Lane lane) const {
    const int64_t first = columns.first + part.first - part.row * columns.outputs;
    for (int i = lane.rank; i < part.size; i += lane.team) {
      const float product = columns.products[part.first + i];
      y[part.row * of_layer + first + i] = static_cast<T>(scales.at(first + i).apply(product));
    }
  }
};

}  // namespace narrowcast::cuda
