#include "trainer/train/bench/rates.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "ops/cpu/wire/wire_kernels.h"
#include "ops/median.h"

namespace narrowcast::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double seconds_of(const std::function<void()>& run) {
  const auto begin = Clock::now();
  run();
  return seconds_since(begin);
}

// Gradients, and staging buffers for what becomes of them in any format.
struct Arrays {
  explicit Arrays(int64_t elements)
      : gradients(static_cast<size_t>(elements)),
        decoded(gradients.size()),
        zeros(gradients.size()),
        message(gradients.size() * sizeof(float)) {
    uint32_t random = 1;
    for (float& gradient : gradients) {
      random = random * 1664525U + 1013904223U;
      gradient = (static_cast<float>(random >> 8) * 0x1p-24F - 0.5F) * 1e-3F;
    }
  }
  int64_t size() const { return static_cast<int64_t>(gradients.size()); }

  std::vector<float> gradients;
  std::vector<float> decoded;
  std::vector<float> zeros;
  std::vector<uint8_t> message;
};

// The search for a byte that is not there: the C library reads with the widest vectors.
void read_all(const std::vector<float>& zeros) {
  const void* const found = std::memchr(zeros.data(), 1, zeros.size() * sizeof(float));
  TORCH_INTERNAL_ASSERT(found == nullptr);
}

// Seconds of each turn.
struct Turns {
  std::vector<double> read;
  std::vector<double> encode;
  std::vector<double> decode;
};

Turns take_turns(Arrays& arrays, WireFormat format, int64_t turns) {
  const auto encode = [&] {
    cpu::wire_encode<float>(format, {arrays.gradients.data(), arrays.size()}, {}, arrays.message.data());
  };
  const auto decode = [&] { cpu::wire_decode(format, arrays.message.data(), arrays.size(), arrays.decoded.data()); };
  encode();
  decode();
  Turns seconds;
  for (int64_t turn = 0; turn < turns; ++turn) {
    seconds.read.push_back(seconds_of([&] { read_all(arrays.zeros); }));
    seconds.encode.push_back(seconds_of(encode));
    seconds.decode.push_back(seconds_of(decode));
  }
  return seconds;
}

}  // namespace

KernelRates measure_kernels(const KernelOptions& options) {
  Arrays arrays(options.elements);
  const double gigabytes = 4e-9 * static_cast<double>(options.elements);
  KernelRates rates;
  std::vector<double> reads;
  for (const WireFormat format : kWireFormats) {
    const Turns seconds = take_turns(arrays, format, options.turns);
    reads.insert(reads.end(), seconds.read.begin(), seconds.read.end());
    rates.formats.push_back(
        {.format = format, .encode = gigabytes / median(seconds.encode), .decode = gigabytes / median(seconds.decode)});
  }
  rates.memory_read = gigabytes / median(reads);
  return rates;
}

LinkRate measure_link(const ProcessGroupPtr& group, const collectives::LinkEffort& effort) {
  const int64_t ranks = group->getSize();
  const int64_t rank = group->getRank();
  const collectives::LinkPeers neighbours{(rank + 1) % ranks, (rank + ranks - 1) % ranks};
  const collectives::LinkRates rates = collectives::measure_link(group, neighbours, effort);
  return {.gbit_per_second = rates.cost.gbit(),
          .message_bytes = rates.message_bytes,
          .round_trip_us = 2e6 * rates.cost.seconds_per_hop,
          .payload_bytes_sent = rates.payload_bytes_sent};
}

}  // namespace narrowcast::bench
