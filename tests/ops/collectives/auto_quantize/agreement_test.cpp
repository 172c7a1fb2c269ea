// Ranks whose calls do not fit together: all of them are told, none waits, no output changes.
#include "ops/collectives/auto_quantize/agreement.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "tests/ops/collectives/auto_quantize/calls.h"
#include "tests/ops/quantize_tensor/reference.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using test::Call;
using test::Group;
using test::same_bits;
using test::Way;
using testing::error_message;
using testing::run_ranks;

// What each rank is told when all make `body`'s call. Afterwards the group must still work.
template <class Body>
std::vector<std::string> messages_of(int64_t ranks, const Body& body) {
  std::vector<std::string> messages(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int64_t rank, const Group& group) {
    messages[static_cast<size_t>(rank)] = error_message<c10::ValueError>([&] { body(rank, group); });
    std::vector<at::Tensor> one{at::ones({1})};
    group->allreduce(one)->wait();
    EXPECT_EQ(one[0].item<int64_t>(), ranks);
  });
  return messages;
}

class Disagreement : public ::testing::TestWithParam<Way> {
 protected:
  Call call() const { return {.way = GetParam()}; }
};
INSTANTIATE_TEST_SUITE_P(Ways, Disagreement, ::testing::ValuesIn(test::kWays));

TEST_P(Disagreement, OnTheSizeOfAnInputToGather) {
  const auto messages = messages_of(3, [&](int64_t rank, const Group& group) {
    const int64_t own = rank == 1 ? 5 : 4;
    std::vector<at::Tensor> outputs(3, at::full({4}, -1.F));
    outputs[static_cast<size_t>(rank)] = at::full({own}, -1.F);
    try {
      test::all_gather(call(), outputs, at::ones({own}), group);
    } catch (...) {
      EXPECT_TRUE(at::all(at::cat(outputs) == -1).item<bool>());
      throw;
    }
  });
  const std::string expected = "auto_quantize_all_gather: rank 1 sends 5 elements to rank 0, whose outputs[1] has 4";
  EXPECT_EQ(messages, std::vector<std::string>(3, expected));
}

// Only ranks 0 and 2 are concerned, but rank 1 must not wait for them.
TEST_P(Disagreement, OnTheSizeOfOneMessage) {
  const auto messages = messages_of(3, [&](int64_t rank, const Group& group) {
    std::vector<at::Tensor> inputs(3, at::ones({2}));
    const std::vector<at::Tensor> outputs{at::full({2}, -1.F), at::full({2}, -1.F), at::full({2}, -1.F)};
    if (rank == 2) inputs[0] = at::ones({3});
    try {
      test::all_to_all(call(), outputs, inputs, group);
    } catch (...) {
      EXPECT_TRUE(at::all(at::cat(outputs) == -1).item<bool>());
      throw;
    }
  });
  const std::string expected = "auto_quantize_all_to_all: rank 2 sends 3 elements to rank 0, whose outputs[2] has 2";
  EXPECT_EQ(messages, std::vector<std::string>(3, expected));
}

TEST_P(Disagreement, OnRows) {
  const auto messages = messages_of(2, [&](int64_t rank, const Group& group) {
    const at::Tensor output = at::full({4, 3}, -1.F);
    const test::RowSplits splits{{2, 2}, rank == 0 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{2, 2}};
    try {
      test::all_to_all_single(call(), output, at::ones({4, 3}), splits, group);
    } catch (...) {
      EXPECT_TRUE(at::all(output == -1).item<bool>());
      throw;
    }
  });
  const std::string expected =
      "auto_quantize_all_to_all_single: rank 0 sends 3 elements to rank 0, whose output has room for 6";
  EXPECT_EQ(messages, std::vector<std::string>(2, expected));
}

TEST_P(Disagreement, OnTheFormat) {
  const auto messages = messages_of(2, [&](int64_t rank, const Group& group) {
    const Call own{.way = GetParam(), .qtype = rank == 0 ? DQuantType::kFp16 : DQuantType::kBfp16};
    test::all_to_all_single(own, at::zeros({2}), at::ones({2}), {}, group);
  });
  EXPECT_EQ(messages, std::vector<std::string>(
                          2, "auto_quantize_all_to_all_single: qtype is bfp16 on rank 1 but fp16 on rank 0"));
}

TEST_P(Disagreement, OnTheCollective) {
  const auto messages = messages_of(2, [&](int64_t rank, const Group& group) {
    if (rank == 0) {
      test::all_to_all_single(call(), at::zeros({2}), at::ones({2}), {}, group);
    } else {
      test::all_gather(call(), {at::zeros({1}), at::zeros({1})}, at::ones({1}), group);
    }
  });
  EXPECT_EQ(messages, std::vector<std::string>(
                          2, "rank 1 calls auto_quantize_all_gather but rank 0 calls auto_quantize_all_to_all_single"));
}

TEST(Agreement, OfAPeerThatIsSilentFailsAndLeavesTheOutputs) {
  run_ranks(2,
            [](int64_t rank, const Group& group) {
              if (rank == 1) return;
              const at::Tensor output = at::full({2}, -1.F);
              EXPECT_THAT(error_message<c10::DistBackendError>(
                              [&] { test::all_to_all_single({}, output, at::ones({2}), {}, group); }),
                          ::testing::StartsWith("rank 0: auto_quantize_all_to_all_single failed: "));
              EXPECT_TRUE(at::all(output == -1).item<bool>());
            },
            {.timeout = std::chrono::milliseconds(500)});
}

}  // namespace
}  // namespace narrowcast
