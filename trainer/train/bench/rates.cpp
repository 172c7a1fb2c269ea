#include "trainer/train/bench/rates.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/network_errors.h>
#include "ops/cpu/wire/wire_kernels.h"
#include "trainer/train/bench/statistics.h"

namespace narrowcast::bench {
namespace {

using Clock = std::chrono::steady_clock;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr int64_t kPingBytes = 8;
constexpr int kTag = 0;  // The engine's tags begin far above.

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

// A rank and its place between its neighbours.
class Ring {
 public:
  explicit Ring(const ProcessGroupPtr& group) : group_(group), rank_(group->getRank()), size_(group->getSize()) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  int next() const { return (rank_ + 1) % size_; }
  int previous() const { return (rank_ + size_ - 1) % size_; }

  WorkPtr send(const at::Tensor& bytes, int peer) const {
    std::vector<at::Tensor> tensors{bytes};
    return group_->send(tensors, peer, kTag);
  }
  WorkPtr receive(const at::Tensor& bytes, int peer) const {
    std::vector<at::Tensor> tensors{bytes};
    return group_->recv(tensors, peer, kTag);
  }
  // Of a message to the next rank, while one comes from the previous one.
  double seconds_of_exchange(const at::Tensor& sent, const at::Tensor& received) const {
    const WorkPtr receiving = receive(received, previous());
    barrier(group_, "starting to measure the link");
    const auto begin = Clock::now();
    const WorkPtr sending = send(sent, next());
    receiving->wait();
    sending->wait();
    return seconds_since(begin);
  }
  void echo(const at::Tensor& bytes) const {
    receive(bytes, previous())->wait();
    send(bytes, previous())->wait();
  }
  double seconds_of_ping(const at::Tensor& bytes) const {
    const auto begin = Clock::now();
    send(bytes, next())->wait();
    receive(bytes, next())->wait();
    return seconds_since(begin);
  }

 private:
  const ProcessGroupPtr& group_;
  const int rank_;
  const int size_;
};

// Median over the messages of the slowest rank's time.
double seconds_per_message(const ProcessGroupPtr& group, int64_t bytes, int64_t messages) {
  const Ring ring(group);
  const at::Tensor sent = at::zeros({bytes}, at::kByte);
  const at::Tensor received = at::zeros({bytes}, at::kByte);
  std::vector<double> seconds;
  for (int64_t message = 0; message < messages; ++message) {
    seconds.push_back(ring.seconds_of_exchange(sent, received));
  }
  return median(all_reduce_max(group, seconds));
}

double round_trip_seconds(const ProcessGroupPtr& group, int64_t pings) {
  const Ring ring(group);
  const at::Tensor bytes = at::zeros({kPingBytes}, at::kByte);
  std::vector<double> seconds;
  for (int pinging = 0; pinging < ring.size(); ++pinging) {
    barrier(group, "starting to measure round trips");
    for (int64_t ping = 0; ping < pings; ++ping) {
      if (ring.rank() == pinging) {
        seconds.push_back(ring.seconds_of_ping(bytes));
      } else if (ring.previous() == pinging) {
        ring.echo(bytes);
      }
    }
  }
  return all_reduce_max(group, {median(seconds)})[0];
}

// Enough to take as long as asked, judged by the least that may be sent.
int64_t choose_message_bytes(const ProcessGroupPtr& group, const LinkOptions& options) {
  const double seconds = seconds_per_message(group, options.least_bytes, 2);
  const double wanted = static_cast<double>(options.least_bytes) * options.message_seconds / seconds;
  const double most = static_cast<double>(options.most_bytes);
  return std::max(options.least_bytes, static_cast<int64_t>(std::min(wanted, most)));
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

LinkRate measure_link(const ProcessGroupPtr& group, const LinkOptions& options) {
  return with_network_errors(group->getRank(), "measuring the link", [&] {
    LinkRate link;
    link.round_trip_us = 1e6 * round_trip_seconds(group, options.pings);
    link.message_bytes = choose_message_bytes(group, options);
    const double seconds = seconds_per_message(group, link.message_bytes, options.messages);
    link.gbit_per_second = 8e-9 * static_cast<double>(link.message_bytes) / seconds;
    // Every rank pings one neighbour and answers the other.
    link.payload_bytes_sent =
        2 * options.pings * kPingBytes + 2 * options.least_bytes + options.messages * link.message_bytes;
    return link;
  });
}

}  // namespace narrowcast::bench
