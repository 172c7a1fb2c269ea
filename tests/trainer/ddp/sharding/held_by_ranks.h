// The pieces of a sharded optimizer's state that all ranks hold.
#pragma once

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "trainer/ddp/shards/pieces.h"

namespace narrowcast::testing {

class HeldByRanks {
 public:
  // Copies the tensors. Thread-safe.
  void add(int64_t /*rank*/, pieces::HeldPieces held) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (pieces::Piece& piece : held.pieces) {
      for (auto& [name, tensor] : piece.tensors) tensor = tensor.clone();
      by_range_[pieces::describe(piece.range)].push_back(std::move(piece));
    }
    numels_ = held.numels;
  }

  // The ranks hold each element twice, with these tensors, and with the same bits.
  void expect_two_equal_copies(const std::vector<std::string>& names) const {
    std::map<std::string, int64_t> left = numels_;
    for (const auto& [range, copies] : by_range_) {
      ASSERT_EQ(copies.size(), 2U) << range;
      left[copies[0].range.name] -= copies[0].range.numel();
      EXPECT_EQ(copies[0].step, copies[1].step) << range;
      for (const pieces::Piece& copy : copies) EXPECT_EQ(copy.tensors.size(), copies[0].tensors.size()) << range;
      if (!copies[0].step) continue;  // A parameter without gradients.
      for (const std::string& name : names) {
        ASSERT_TRUE(copies[0].tensors.contains(name) && copies[1].tensors.contains(name)) << range << "." << name;
        EXPECT_TRUE(at::equal(copies[0].tensors.at(name), copies[1].tensors.at(name))) << range << "." << name;
      }
    }
    EXPECT_FALSE(left.empty());
    for (const auto& [name, numel] : left) EXPECT_EQ(numel, 0) << name;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<pieces::Piece>> by_range_;
  std::map<std::string, int64_t> numels_;
};

}  // namespace narrowcast::testing
