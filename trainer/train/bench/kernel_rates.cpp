#include "trainer/train/bench/kernel_rates.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/common/device_laps.h"
#include "ops/common/median.h"

namespace narrowcast::bench {
namespace {

constexpr double kGradientSize = 1e-3;        // Their standard deviation.
constexpr int64_t kDrawn = int64_t{1} << 20;  // Numbers drawn at random, which are then repeated.

// Limits ATen to one thread, from here to the end of the scope.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(threads_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int threads_ = at::get_num_threads();
};

at::Tensor gradients_on(at::Device device, int64_t elements) {
  const int64_t drawn = std::min(elements, kDrawn);
  const at::Tensor some = at::randn({drawn}, at::detail::createCPUGenerator(1)) * kGradientSize;
  return some.to(device).repeat({(elements + drawn - 1) / drawn}).narrow(0, 0, elements);
}

// Bytes of the longest message of `elements` elements in any format.
int64_t most_bytes(int64_t elements) {
  int64_t most = 0;
  for (const WireFormat format : kWireFormats) {
    most = std::max(most, encoded_size(elements, format));
  }
  return most;
}

// Gradients, and buffers for their messages and decoded values in any format.
class Arrays {
 public:
  Arrays(int64_t elements, at::Device device)
      : gradients_(gradients_on(device, elements)),
        decoded_(at::zeros({elements}, device)),
        message_(at::zeros({most_bytes(elements)}, at::device(device).dtype(at::kByte))),
        zeros_(at::zeros({device.is_cpu() ? elements : 0}, device)) {}

  // Moves memory as KernelRates::memory defines it.
  void move_memory() const {
    if (gradients_.is_cpu()) {
      read_zeros();
    } else {
      decoded_.copy_(gradients_);
    }
  }
  void encode(WireFormat format) const {
    collectives::make_wire_codec(format, gradients_.device().type())
        ->encode({}, {.array = gradients_, .range = all()}, bytes());
  }
  void decode(WireFormat format) const {
    collectives::make_wire_codec(format, decoded_.device().type())
        ->decode(bytes(), {.array = decoded_, .range = all()});
  }

 private:
  // Searches for a byte that does not occur: the C library reads with the widest vectors.
  void read_zeros() const {
    const void* const found = std::memchr(zeros_.const_data_ptr(), 1, zeros_.nbytes());
    TORCH_INTERNAL_ASSERT(found == nullptr);
  }

  collectives::ElementRange all() const { return {0, gradients_.numel()}; }
  uint8_t* bytes() const { return message_.mutable_data_ptr<uint8_t>(); }

  const at::Tensor gradients_;
  const at::Tensor decoded_;
  const at::Tensor message_;
  const at::Tensor zeros_;
};

// Seconds of each turn.
struct Turns {
  std::vector<double> memory;
  std::vector<double> encode;
  std::vector<double> decode;
};

Turns time_kernels(const Arrays& arrays, WireFormat format, const KernelOptions& options) {
  arrays.encode(format);
  arrays.decode(format);
  DeviceLaps laps(options.device);
  Turns seconds;
  for (int64_t turn = 0; turn < options.turns; ++turn) {
    laps.mark();
    arrays.move_memory();
    laps.mark();
    arrays.encode(format);
    laps.mark();
    arrays.decode(format);
    laps.mark();
    const std::vector<double> of_turn = laps.take();
    seconds.memory.push_back(of_turn[0]);
    seconds.encode.push_back(of_turn[1]);
    seconds.decode.push_back(of_turn[2]);
  }
  return seconds;
}

}  // namespace

KernelRates measure_kernels(const KernelOptions& options) {
  const OneThread one_thread;
  const Arrays arrays(options.elements, options.device);
  const double gigabytes = 4e-9 * static_cast<double>(options.elements);
  KernelRates rates{.device = options.device.type()};
  std::vector<double> memory;
  for (const WireFormat format : kWireFormats) {
    const Turns seconds = time_kernels(arrays, format, options);
    memory.insert(memory.end(), seconds.memory.begin(), seconds.memory.end());
    rates.formats.push_back(
        {.format = format, .encode = gigabytes / median(seconds.encode), .decode = gigabytes / median(seconds.decode)});
  }
  const double moved = options.device.is_cpu() ? gigabytes : 2 * gigabytes;  // A copy reads and writes.
  rates.memory = moved / median(memory);
  return rates;
}

}  // namespace narrowcast::bench
