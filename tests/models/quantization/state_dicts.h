// Compares state dicts.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "models/quantization/weight_only_int8.h"

namespace narrowcast::testing {

inline std::set<std::string> keys_of(const models::StateDict& state) {
  std::set<std::string> keys;
  for (const auto& [name, tensor] : state) keys.insert(name);
  return keys;
}

inline void expect_equal(const models::StateDict& actual, const models::StateDict& expected) {
  ASSERT_EQ(keys_of(actual), keys_of(expected));
  for (const auto& [name, tensor] : expected) {
    EXPECT_EQ(actual.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(actual.at(name).equal(tensor)) << name;
  }
}

}  // namespace narrowcast::testing
