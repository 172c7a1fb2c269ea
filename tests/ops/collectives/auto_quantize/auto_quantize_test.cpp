// The results of the auto_quantize collectives: upstream's cases, and cases that upstream does not test.
#include <narrowcast/auto_quantize.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <tuple>
#include <vector>

#include "tests/ops/collectives/auto_quantize/calls.h"
#include "tests/ops/quantize_tensor/reference.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using test::Call;
using test::Group;
using test::same_bits;
using test::Way;
using testing::run_ranks;

// Ranks x format x way to call.
class AutoQuantize : public ::testing::TestWithParam<std::tuple<int64_t, DQuantType, Way>> {
 protected:
  int64_t world_size() const { return std::get<0>(GetParam()); }
  Call call() const { return {.way = std::get<2>(GetParam()), .qtype = std::get<1>(GetParam())}; }
};

INSTANTIATE_TEST_SUITE_P(WorldsAndFormats, AutoQuantize,
                         ::testing::Combine(::testing::Values(2, 3, 4), ::testing::ValuesIn(test::kDQuantTypes),
                                            ::testing::ValuesIn(test::kWays)));

// The received values of a tensor.
at::Tensor round_trip(const at::Tensor& x, const Call& call) {
  return dequantize_tensor(quantize_tensor(x, call.qtype), call.qtype, call.quant_loss);
}

// The values that `sender` sends to `receiver`; all ranks can compute them.
at::Tensor values_of(int64_t sender, int64_t receiver, at::IntArrayRef shape) {
  const at::Tensor index = at::arange(c10::multiply_integers(shape), at::kFloat).view(shape);
  return at::sin(index * 0.37 + static_cast<double>(7 * sender + receiver)) * 1000;
}

// test_quantization.py, _test_all_gather.
TEST_P(AutoQuantize, AllGatherOfUpstreamsTest) {
  run_ranks(world_size(), [&](int64_t rank, const Group& group) {
    for (int64_t dest = 0; dest < world_size(); ++dest) {
      const at::Tensor tensor = at::full({dest + 1, dest + 1}, rank, at::kFloat);
      std::vector<at::Tensor> tensors;
      for (int64_t i = 0; i < world_size(); ++i) tensors.push_back(at::full({dest + 1, dest + 1}, -1, at::kFloat));
      test::all_gather(call(), tensors, tensor, group);
      for (int64_t i = 0; i < world_size(); ++i) {
        EXPECT_TRUE(same_bits(tensors[static_cast<size_t>(i)], at::full_like(tensor, i)));
      }
    }
  });
}

// test_quantization.py, _test_all_to_all.
TEST_P(AutoQuantize, AllToAllOfUpstreamsTest) {
  run_ranks(world_size(), [&](int64_t rank, const Group& group) {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    for (int64_t i = 0; i < world_size(); ++i) {
      inputs.push_back(at::full({i + 1, world_size()}, rank, at::kFloat));
      outputs.push_back(at::ones({rank + 1, world_size()}));
    }
    test::all_to_all(call(), outputs, inputs, group);
    for (int64_t i = 0; i < world_size(); ++i) {
      EXPECT_TRUE(same_bits(outputs[static_cast<size_t>(i)], at::full({rank + 1, world_size()}, i, at::kFloat)));
    }
  });
}

// test_quantization.py, _test_all_to_all_single.
TEST_P(AutoQuantize, AllToAllSingleOfUpstreamsTest) {
  const int64_t ranks = world_size();
  run_ranks(ranks, [&](int64_t rank, const Group& group) {
    std::vector<int64_t> input_splits(static_cast<size_t>(ranks));
    std::iota(input_splits.begin(), input_splits.end(), 1);
    const std::vector<int64_t> output_splits(static_cast<size_t>(ranks), rank + 1);
    const at::Tensor input = at::ones({ranks * (ranks + 1) / 2, ranks}) * rank;
    const at::Tensor output = at::ones({(rank + 1) * ranks, ranks});
    test::all_to_all_single(call(), output, input, {output_splits, input_splits}, group);
    for (int64_t i = 0; i < ranks; ++i) {
      EXPECT_TRUE(same_bits(output.narrow(0, i * (rank + 1), rank + 1), at::full({rank + 1, ranks}, i, at::kFloat)));
    }
  });
}

// Ranks contribute tensors of different shapes, one of them an empty tensor.
TEST_P(AutoQuantize, AllGatherTakesInputsOfAnySizes) {
  const std::vector<std::vector<int64_t>> shapes{{}, {300, 7}, {0, 5}, {2, 3, 4}};
  run_ranks(world_size(), [&](int64_t rank, const Group& group) {
    std::vector<at::Tensor> outputs;
    for (int64_t i = 0; i < world_size(); ++i) outputs.push_back(at::empty(shapes[static_cast<size_t>(i)]));
    test::all_gather(call(), outputs, values_of(rank, 0, shapes[static_cast<size_t>(rank)]), group);
    for (int64_t i = 0; i < world_size(); ++i) {
      const at::Tensor sent = values_of(i, 0, shapes[static_cast<size_t>(i)]);
      EXPECT_TRUE(same_bits(outputs[static_cast<size_t>(i)], round_trip(sent, call())));
    }
  });
}

TEST_P(AutoQuantize, AllToAllTakesAnyShapesAndNothing) {
  const auto shape = [](int64_t from, int64_t to) { return std::vector<int64_t>{(from + 2 * to) % 3, 5, to + 1}; };
  run_ranks(world_size(), [&](int64_t rank, const Group& group) {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    for (int64_t i = 0; i < world_size(); ++i) {
      inputs.push_back(values_of(rank, i, shape(rank, i)));
      outputs.push_back(at::empty(shape(i, rank)));
    }
    test::all_to_all(call(), outputs, inputs, group);
    for (int64_t i = 0; i < world_size(); ++i) {
      const at::Tensor sent = values_of(i, rank, shape(i, rank));
      EXPECT_TRUE(same_bits(outputs[static_cast<size_t>(i)], round_trip(sent, call())));
    }
  });
}

TEST_P(AutoQuantize, AllToAllSingleSplitsEquallyUnlessTold) {
  const int64_t ranks = world_size();
  run_ranks(ranks, [&](int64_t rank, const Group& group) {
    std::vector<at::Tensor> parts;
    std::vector<at::Tensor> expected;
    for (int64_t i = 0; i < ranks; ++i) {
      parts.push_back(values_of(rank, i, {2, 3}));
      expected.push_back(round_trip(values_of(i, rank, {2, 3}), call()));
    }
    const at::Tensor output = at::empty({2 * ranks, 3});
    test::all_to_all_single(call(), output, at::cat(parts), {}, group);
    EXPECT_TRUE(same_bits(output, at::cat(expected)));
  });
}

// Rank 0 sends everything to the last rank, and the others send nothing.
TEST_P(AutoQuantize, AllToAllSingleTakesSplitsOfZero) {
  const int64_t last = world_size() - 1;
  run_ranks(world_size(), [&](int64_t rank, const Group& group) {
    test::RowSplits splits{std::vector<int64_t>(static_cast<size_t>(world_size())),
                           std::vector<int64_t>(static_cast<size_t>(world_size()))};
    if (rank == 0) splits.input.back() = 4;
    if (rank == last) splits.output.front() = 4;
    const at::Tensor output = at::zeros({rank == last ? 4 : 0, 3});
    test::all_to_all_single(call(), output, values_of(0, last, {rank == 0 ? 4 : 0, 3}), splits, group);
    EXPECT_TRUE(same_bits(output, rank == last ? round_trip(values_of(0, last, {4, 3}), call()) : output));
  });
}

TEST_P(AutoQuantize, MovesNothingAtAll) {
  run_ranks(world_size(), [&](int64_t, const Group& group) {
    const std::vector<at::Tensor> empty(static_cast<size_t>(world_size()), at::empty({0, 2}));
    EXPECT_NO_THROW(test::all_gather(call(), empty, empty[0], group));
    EXPECT_NO_THROW(test::all_to_all(call(), empty, empty, group));
    EXPECT_NO_THROW(test::all_to_all_single(call(), empty[0], empty[0], {}, group));
  });
}

TEST_P(AutoQuantize, WritesStridedOutputsInPlaceInTheirDtype) {
  run_ranks(world_size(), [&](int64_t rank, const Group& group) {
    for (const at::ScalarType dtype : test::kFloatTypes) {
      const at::Tensor base = at::full({3, 2 * world_size(), 4}, -5, dtype);
      std::vector<at::Tensor> outputs;
      for (int64_t i = 0; i < world_size(); ++i) outputs.push_back(base.select(1, 2 * i).t());
      const at::Tensor input = values_of(rank, 0, {3, 4}).t();
      test::all_gather(call(), outputs, input, group);
      for (int64_t i = 0; i < world_size(); ++i) {
        const at::Tensor expected = round_trip(values_of(i, 0, {3, 4}), call()).to(dtype);
        EXPECT_TRUE(same_bits(base.select(1, 2 * i), expected));
        EXPECT_TRUE(at::all(base.select(1, 2 * i + 1) == -5).item<bool>()) << "beside the outputs";
      }
    }
  });
}

TEST_P(AutoQuantize, DividesByQuantLoss) {
  Call divided = call();
  divided.quant_loss = 1.7;
  run_ranks(world_size(), [&](int64_t rank, const Group& group) {
    const at::Tensor input = values_of(rank, 0, {world_size(), 5});
    const at::Tensor single = at::empty_like(input);
    test::all_to_all_single(divided, single, input, {}, group);
    std::vector<at::Tensor> gathered;
    std::vector<at::Tensor> exchanged;
    for (int64_t i = 0; i < world_size(); ++i) {
      gathered.push_back(at::empty_like(input));
      exchanged.push_back(at::empty({5}));
    }
    test::all_gather(divided, gathered, input, group);
    test::all_to_all(divided, exchanged, input.unbind(0), group);
    for (int64_t i = 0; i < world_size(); ++i) {
      const at::Tensor expected = round_trip(values_of(i, 0, {world_size(), 5}), divided);
      EXPECT_TRUE(same_bits(gathered[static_cast<size_t>(i)], expected));
      EXPECT_TRUE(same_bits(exchanged[static_cast<size_t>(i)], expected[rank]));
      EXPECT_TRUE(same_bits(single[i], expected[rank]));
    }
  });
}

// An output may be the input itself: it is encoded before anything is written.
TEST_P(AutoQuantize, WorksInPlace) {
  run_ranks(world_size(), [&](int64_t rank, const Group& group) {
    const at::Tensor x = values_of(rank, 0, {world_size(), 5});
    test::all_to_all_single(call(), x, x, {}, group);
    for (int64_t i = 0; i < world_size(); ++i) {
      EXPECT_TRUE(same_bits(x[i], round_trip(values_of(i, 0, {world_size(), 5}), call())[rank]));
    }
  });
}

// More bytes than the sockets buffer, so that a rank that only sends or only receives would wait forever.
TEST_P(AutoQuantize, MovesMegabytes) {
  constexpr int64_t kColumns = 1 << 19;
  run_ranks(world_size(), [&](int64_t rank, const Group& group) {
    const at::Tensor input = at::full({world_size(), kColumns}, rank + 1, at::kFloat);
    const at::Tensor output = at::zeros_like(input);
    test::all_to_all_single(call(), output, input, {}, group);
    EXPECT_TRUE(same_bits(output, (at::arange(world_size(), at::kFloat) + 1).unsqueeze(1).expand_as(input)));
  });
}

TEST(AutoQuantizeCallables, RefuseAnUnknownType) {
  EXPECT_THROW(auto_quantize(collectives::all_gather, static_cast<DQuantType>(9)), c10::ValueError);
}

}  // namespace
}  // namespace narrowcast
