// Ranks whose calls do not fit together: all of them get the error, no rank waits, and no output changes.
#include "ops/collectives/auto_quantize/agreement.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "ops/comm/groups/agree.h"
#include "ops/comm/groups/group.h"
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
using ::testing::AllOf;
using testing::error_message;
using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::StartsWith;

// The error of each rank when all make `body`'s call. After it the group must still work.
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

// Only ranks 0 and 2 differ, but rank 1 must not wait for them.
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
  EXPECT_EQ(messages,
            std::vector<std::string>(
                2, "auto_quantize_all_to_all_single: qtype differs between ranks: rank 0 has fp16, rank 1 has bfp16"));
}

TEST_P(Disagreement, OnTheCollective) {
  const auto messages = messages_of(2, [&](int64_t rank, const Group& group) {
    if (rank == 0) {
      test::all_to_all_single(call(), at::zeros({2}), at::ones({2}), {}, group);
    } else {
      test::all_gather(call(), {at::zeros({1}), at::zeros({1})}, at::ones({1}), group);
    }
  });
  EXPECT_EQ(messages, std::vector<std::string>(2,
                                               "call differs between ranks: rank 0 has "
                                               "auto_quantize_all_to_all_single, rank 1 has auto_quantize_all_gather; "
                                               "all ranks must make the same calls in the same order"));
}

// The arguments of one rank are wrong: all ranks get its error text.
class RefusalOfOneRank : public ::testing::TestWithParam<std::tuple<Way, int64_t>> {
 protected:
  static Call call() { return {.way = std::get<0>(GetParam())}; }
  static int64_t ranks() { return std::get<1>(GetParam()); }
  static void expect_all(const std::vector<std::string>& messages, const std::string& expected) {
    EXPECT_EQ(messages, std::vector<std::string>(static_cast<size_t>(ranks()), expected));
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, RefusalOfOneRank,
                         ::testing::Combine(::testing::ValuesIn(test::kWays), ::testing::Values(2, 3, 4)));

TEST_P(RefusalOfOneRank, WithTooFewOutputs) {
  const auto messages = messages_of(ranks(), [&](int64_t rank, const Group& group) {
    const std::vector<at::Tensor> outputs(static_cast<size_t>(rank == 1 ? ranks() - 1 : ranks()), at::full({4}, -1.F));
    test::all_gather(call(), outputs, at::ones({4}), group);
  });
  expect_all(messages, "auto_quantize_all_gather on rank 1: outputs must hold one tensor per rank, " +
                           std::to_string(ranks()) + ", but holds " + std::to_string(ranks() - 1));
}

TEST_P(RefusalOfOneRank, WithAnOutputThatOverlapsItself) {
  const auto messages = messages_of(ranks(), [&](int64_t rank, const Group& group) {
    std::vector<at::Tensor> outputs(static_cast<size_t>(ranks()));
    for (at::Tensor& output : outputs) output = at::full({2, 2}, -1.F);
    if (rank == ranks() - 1) outputs[1] = at::zeros({3}).as_strided({2, 2}, {1, 1});
    test::all_to_all(call(), outputs, std::vector<at::Tensor>(outputs.size(), at::ones({2, 2})), group);
  });
  expect_all(messages,
             "auto_quantize_all_to_all on rank " + std::to_string(ranks() - 1) +
                 ": outputs[1] has elements that overlap in memory: its sizes are [2, 2], its strides [1, 1]");
}

TEST_P(RefusalOfOneRank, WithSplitsThatDoNotFit) {
  const int64_t rows = 2 * ranks();
  const auto messages = messages_of(ranks(), [&](int64_t rank, const Group& group) {
    const std::vector<int64_t> splits(static_cast<size_t>(ranks()), rank == 0 ? 1 : 2);
    test::all_to_all_single(call(), at::zeros({rows}), at::ones({rows}), {splits, {}}, group);
  });
  expect_all(messages, "auto_quantize_all_to_all_single on rank 0: output_split_sizes is " +
                           c10::str(at::IntArrayRef(std::vector<int64_t>(static_cast<size_t>(ranks()), 1))) +
                           " but output has " + std::to_string(rows) + " rows");
}

TEST_P(RefusalOfOneRank, WithADtype) {
  std::vector<std::string> messages(static_cast<size_t>(ranks()));
  run_ranks(ranks(), [&](int64_t rank, const Group& group) {
    const at::Tensor input = rank == 1 ? at::ones({ranks()}, at::kInt) : at::ones({ranks()});
    messages[static_cast<size_t>(rank)] =
        error_message<c10::TypeError>([&] { test::all_to_all_single(call(), at::zeros({ranks()}), input, {}, group); });
  });
  expect_all(messages,
             "auto_quantize_all_to_all_single on rank 1: input must be float32, float64, bfloat16 or float16, not Int");
}

TEST_P(RefusalOfOneRank, WithAnInputThatIsSparse) {
  const auto messages = messages_of(ranks(), [&](int64_t rank, const Group& group) {
    const at::Tensor input = rank == 1 ? at::ones({ranks()}).to_sparse() : at::ones({ranks()});
    test::all_to_all_single(call(), at::zeros({ranks()}), input, {}, group);
  });
  expect_all(messages, "auto_quantize_all_to_all_single on rank 1: input must be dense, but has layout Sparse");
}

TEST_P(RefusalOfOneRank, WithAnOutputThatIsSparse) {
  const auto messages = messages_of(ranks(), [&](int64_t rank, const Group& group) {
    std::vector<at::Tensor> outputs(static_cast<size_t>(ranks()), at::zeros({2, 2}));
    if (rank == 1) outputs[1] = at::ones({2, 2}).to_sparse();
    test::all_gather(call(), outputs, at::ones({2, 2}), group);
  });
  expect_all(messages, "auto_quantize_all_gather on rank 1: outputs[1] must be dense, but has layout Sparse");
}

TEST_P(RefusalOfOneRank, WithALeafThatRequiresAGradientAsOutput) {
  const auto messages = messages_of(ranks(), [&](int64_t rank, const Group& group) {
    const at::Tensor output = at::full({ranks()}, -1.F).requires_grad_(rank == 1);
    try {
      test::all_to_all_single(call(), output, at::ones({ranks()}), {}, group);
    } catch (...) {
      EXPECT_TRUE(at::all(output == -1).item<bool>());
      throw;
    }
  });
  expect_all(messages,
             "auto_quantize_all_to_all_single on rank 1: output cannot be written in place: a leaf Variable that"
             " requires grad is being used in an in-place operation.");
}

// Inputs that need a gradient are enough for the error.
TEST_P(RefusalOfOneRank, WithOutputsThatAreViewsOfOneFunction) {
  const auto messages = messages_of(ranks(), [&](int64_t rank, const Group& group) {
    const at::Tensor input = at::ones({2}).requires_grad_(rank == 1);
    test::all_gather(call(), at::zeros({ranks(), 2}).unbind(0), input, group);
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message,
                AllOf(StartsWith("auto_quantize_all_gather on rank 1: outputs[0] cannot be written in place: "),
                      HasSubstr("the output of a function that returns multiple views")));
  }
}

TEST(RefusalOfOneRankAlone, IsThrownByItselfWhereTheOthersAreGone) {
  const auto refused = [](int64_t rank, const Group& group) {
    if (rank == 1) return;
    EXPECT_THAT(error_message<c10::ValueError>([&] { test::all_gather({}, {at::ones({1})}, at::ones({1}), group); }),
                ::testing::StartsWith("outputs must hold one tensor per rank, 2, but holds 1; the other ranks could "
                                      "not be informed: rank 0: auto_quantize_all_gather failed: "));
  };
  run_ranks(2, refused, {.timeout = std::chrono::milliseconds(500)});
}

// A peer takes part in another collective of the same size. Its numbers must not be used as sizes.
TEST(Agreement, DoesNotTakeOtherNumbersForSizes) {
  constexpr int64_t kBytes = collectives::kAnnouncementBytes + 2 * 2 * 8;
  const auto sizes = [](const std::vector<int64_t>& numbers) {
    return collectives::slot_of(
        {.call = "auto_quantize_all_to_all_single", .entries = {{"qtype", "fp16"}}, .numbers = numbers}, kBytes);
  };
  for (const at::Tensor& other :
       {at::full({kBytes}, 0x7f, at::kByte), sizes({1, 1, 1}), sizes({1, 1, 1, -1}), sizes({})}) {
    run_ranks(2, [&](int64_t rank, const Group& group) {
      if (rank == 1) {
        collectives::all_gather_rows(group, other);
        return;
      }
      EXPECT_THAT(error_message<c10::DistBackendError>(
                      [&] { test::all_to_all_single({}, at::zeros({2}), at::ones({2}), {}, group); }),
                  ::testing::StartsWith("rank 0: auto_quantize_all_to_all_single failed: rank 1 sent a message that "));
    });
  }
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
