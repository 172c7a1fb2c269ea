// A job for tests of the engine.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ops/comm/engine/engine.h"
#include "ops/comm/engine/transport.h"

namespace narrowcast::engine {

// Called on the engine's thread.
struct Observer {
  std::function<void()> on_start = [] {};
  std::function<void()> on_advance = [] {};
  std::function<void()> on_finish = [] {};
};

// Hop 1: every rank sends `count` bytes of value rank + 10 * number to all others.
// Hop 2: it forwards the message from rank - 1 to rank + 1.
// The value is the sum of one byte of each message received.
class TwoHops final : public Job {
 public:
  TwoHops(int64_t number, int64_t count, Observer observer = {})
      : number_(number), count_(count), observer_(std::move(observer)) {}

  std::string name() const override { return "exchange " + std::to_string(number_); }

  void start(Transport& transport) override {
    observer_.on_start();
    const int64_t rank = transport.rank();
    const int64_t world_size = transport.world_size();
    for (int64_t i = 1; i < world_size; ++i) {
      const int64_t peer = transport.peer_before(i);
      for (int64_t hop = 0; hop < (i == 1 ? 2 : 1); ++hop) {
        received_.push_back(at::empty({count_}, at::kByte));
        receives_.push_back(transport.post_receive({received_.back(), peer, hop}));
      }
    }
    for (int64_t i = 1; i < world_size; ++i) {
      transport.send({at::full({count_}, rank + 10 * number_, at::kByte), transport.peer_after(i)});
    }
  }

  void advance(Transport& transport) override {
    observer_.on_advance();
    if (receives_.empty()) return;
    transport.wait_receive(receives_[0]);
    transport.send({received_[0], (transport.rank() + 1) % transport.world_size(), 1});
  }

  at::Tensor finish(Transport& transport) override {
    observer_.on_finish();
    int64_t sum = 0;
    for (size_t i = 0; i < receives_.size(); ++i) {
      transport.wait_receive(receives_[i]);
      if (count_ > 0) sum += received_[i][count_ - 1].item<int64_t>();
    }
    return at::full({}, sum, at::kLong);
  }

 private:
  int64_t number_;
  int64_t count_;
  Observer observer_;
  std::vector<at::Tensor> received_;
  std::vector<int64_t> receives_;
};

// The value on rank `rank`.
inline int64_t expected_sum(int64_t number, int64_t count, int64_t rank, int64_t world_size) {
  if (count == 0 || world_size == 1) return 0;
  const int64_t first_hop = world_size * (world_size - 1) / 2 - rank + (world_size - 1) * 10 * number;
  return first_hop + (rank + world_size - 2) % world_size + 10 * number;
}

}  // namespace narrowcast::engine
