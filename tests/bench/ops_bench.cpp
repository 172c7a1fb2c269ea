// Affine uint8, FP16 and BFP16 kernels on one core, in bytes of float32 per second (read by quantize, written by
// dequantize). Data are in the second-level cache or in DRAM. The memory's own rates are measured in the same run.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/cpu/affine_uint8/affine_uint8_kernels.h"
#include "ops/cpu/quantize_tensor/quantize_tensor_kernels.h"

namespace narrowcast {
namespace {

// Elements: 256 KiB of float32 and their codes fit the second-level cache of any current processor; 256 MiB fit no
// cache.
constexpr int64_t kInCache = int64_t{1} << 16;
constexpr int64_t kInDram = int64_t{1} << 26;
constexpr int64_t kRow = 512;  // The per-channel hook's row.

struct Buffers {
  explicit Buffers(int64_t n) : floats(static_cast<size_t>(n)), out(floats.size()), codes(floats.size() * 2) {
    uint32_t random = 1;
    for (float& value : floats) {
      random = random * 1664525U + 1013904223U;
      value = (static_cast<float>(random >> 8) * 0x1p-24F - 0.5F) * 1e-3F;
    }
  }
  std::vector<float> floats;
  std::vector<float> out;
  std::vector<uint8_t> codes;
};

// Runs body(buffers, n) and reports how many bytes of float32 it handled per second.
template <class Body>
void measure(benchmark::State& state, Body body) {
  const int64_t n = state.range(0);
  Buffers buffers(n);
  for (auto unused : state) {
    body(buffers, n);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * n * static_cast<int64_t>(sizeof(float)));
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("floats")->Arg(kInCache)->Arg(kInDram)->Unit(benchmark::kMicrosecond);
}

void memory_read(benchmark::State& state) {
  measure(state, [](Buffers& buffers, int64_t n) {
    // A search for a byte that does not occur: the C library reads with the widest vectors.
    benchmark::DoNotOptimize(std::memchr(buffers.out.data(), 1, static_cast<size_t>(n) * sizeof(float)));
  });
}
BENCHMARK(memory_read)->Apply(sizes);

void memory_copy(benchmark::State& state) {
  measure(state, [](Buffers& buffers, int64_t n) {
    std::memcpy(buffers.out.data(), buffers.floats.data(), static_cast<size_t>(n) * sizeof(float));
  });
}
BENCHMARK(memory_copy)->Apply(sizes);

void choose_qparams(benchmark::State& state) {
  measure(state,
          [](Buffers& buffers, int64_t n) { benchmark::DoNotOptimize(cpu::choose_qparams(buffers.floats.data(), n)); });
}
BENCHMARK(choose_qparams)->Apply(sizes);

void quantize(benchmark::State& state) {
  measure(state, [](Buffers& buffers, int64_t n) {
    cpu::quantize(buffers.floats.data(), n, {1e-3F / 255, 128}, buffers.codes.data());
  });
}
BENCHMARK(quantize)->Apply(sizes);

// Qparams and codes in one pass over rows, as in the per-channel hook.
void choose_qparams_and_quantize_rows(benchmark::State& state) {
  measure(state, [](Buffers& buffers, int64_t n) {
    for (int64_t i = 0; i < n; i += kRow) {
      benchmark::DoNotOptimize(
          cpu::choose_qparams_and_quantize(buffers.floats.data() + i, kRow, buffers.codes.data() + i));
    }
  });
}
BENCHMARK(choose_qparams_and_quantize_rows)->Apply(sizes);

void dequantize(benchmark::State& state) {
  measure(state, [](Buffers& buffers, int64_t n) {
    cpu::dequantize(buffers.codes.data(), n, {1e-3F / 255, 128}, buffers.out.data());
  });
}
BENCHMARK(dequantize)->Apply(sizes);

// The mean of two ranks' codes, for the whole array at once or row by row.
void dequantize_mean_of(Buffers& buffers, int64_t n, int64_t row) {
  const std::vector<cpu::AffineQparams> qparams(2, {1e-3F / 255, 128});
  for (int64_t i = 0; i < n; i += row) {
    const uint8_t* const parts[] = {buffers.codes.data() + i, buffers.codes.data() + n + i};
    cpu::dequantize_mean(parts, qparams.data(), 2, row, buffers.out.data() + i);
  }
}

void dequantize_mean_of_two(benchmark::State& state) {
  measure(state, [](Buffers& buffers, int64_t n) { dequantize_mean_of(buffers, n, n); });
}
BENCHMARK(dequantize_mean_of_two)->Apply(sizes);

void dequantize_mean_of_two_rows(benchmark::State& state) {
  measure(state, [](Buffers& buffers, int64_t n) { dequantize_mean_of(buffers, n, kRow); });
}
BENCHMARK(dequantize_mean_of_two_rows)->Apply(sizes);

// The 16-bit formats; their codes have half the bytes that are counted.
template <void (*kEncode)(cpu::EncodeSpan<float>)>
void encode_half(benchmark::State& state) {
  measure(state, [](Buffers& buffers, int64_t n) {
    kEncode({buffers.floats.data(), n, reinterpret_cast<uint16_t*>(buffers.codes.data())});
  });
}
BENCHMARK_TEMPLATE(encode_half, cpu::encode_fp16<float>)->Name("quantize_fp16")->Apply(sizes);
BENCHMARK_TEMPLATE(encode_half, cpu::encode_bfp16<float>)->Name("quantize_bfp16")->Apply(sizes);

template <void (*kDecode)(cpu::DecodeSpan)>
void decode_half(benchmark::State& state) {
  measure(state, [](Buffers& buffers, int64_t n) {
    kDecode({reinterpret_cast<const uint16_t*>(buffers.codes.data()), n, buffers.out.data()});
  });
}
BENCHMARK_TEMPLATE(decode_half, cpu::decode_fp16)->Name("dequantize_fp16")->Apply(sizes);
BENCHMARK_TEMPLATE(decode_half, cpu::decode_bfp16)->Name("dequantize_bfp16")->Apply(sizes);

template <void (*kDecode)(cpu::DecodeSpan, float)>
void decode_half_divided(benchmark::State& state) {
  measure(state, [](Buffers& buffers, int64_t n) {
    kDecode({reinterpret_cast<const uint16_t*>(buffers.codes.data()), n, buffers.out.data()}, 1.1F);
  });
}
BENCHMARK_TEMPLATE(decode_half_divided, cpu::decode_fp16)->Name("dequantize_fp16_with_quant_loss")->Apply(sizes);
BENCHMARK_TEMPLATE(decode_half_divided, cpu::decode_bfp16)->Name("dequantize_bfp16_with_quant_loss")->Apply(sizes);

}  // namespace
}  // namespace narrowcast

BENCHMARK_MAIN();
