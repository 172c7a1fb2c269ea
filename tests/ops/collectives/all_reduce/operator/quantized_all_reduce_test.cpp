#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include <narrowcast/quantized_all_reduce.h>
#include "ops/collectives/all_reduce/operator/announced_call.h"
#include "ops/comm/engine/engine.h"
#include "ops/operators/dispatch.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"
#include "tests/ops/collectives/auto_quantize/calls.h"
#include "tests/ops/operators/script.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using ::testing::AllOf;
using testing::error_message;
using ::testing::HasSubstr;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kRanks = 3;

at::Tensor run_operator(const at::Tensor& x, const std::string& format, const std::string& group,
                        const std::string& levels = "auto") {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, std::string_view, std::string_view, std::string_view)>(
          "narrowcast::quantized_all_reduce");
  return op.call(x, format, group, levels);
}

void run_operator_(const at::Tensor& x, const std::string& format, const std::string& group,
                   const std::string& levels = "auto") {
  static const auto op = find_operator<void(const at::Tensor&, std::string_view, std::string_view, std::string_view)>(
      "narrowcast::quantized_all_reduce_");
  op.call(x, format, group, levels);
}

std::vector<at::Tensor> make_inputs(at::IntArrayRef shape) {
  at::manual_seed(3);
  std::vector<at::Tensor> inputs;
  for (int64_t rank = 0; rank < kRanks; ++rank) inputs.push_back(at::randn(shape));
  return inputs;
}

// The ranks share a node.
at::Tensor expected_mean(WireFormat format, Levels levels, std::vector<at::Tensor> inputs) {
  const auto shape = inputs[0].sizes().vec();
  for (at::Tensor& input : inputs) input = input.reshape({-1});
  const int64_t node_size = levels == Levels::kOne ? 1 : kRanks;
  return collectives::mean_over_nodes({format}, inputs, node::NodeLayout::of_size(kRanks, node_size)).view(shape);
}

constexpr Levels kEveryLevels[] = {Levels::kAuto, Levels::kOne, Levels::kTwo};

TEST(QuantizedAllReduce, AveragesInEveryWayItCanBeCalled) {
  const auto inputs = make_inputs({500, 600});
  for (const Levels levels : kEveryLevels) {
    const at::Tensor expected = expected_mean(WireFormat::kInt4B32, levels, inputs);
    run_ranks(kRanks, [&](int64_t rank, const Group& group) {
      const test::RegisteredGroup registered(group);
      const std::string name(to_string(levels));
      const at::Tensor x = inputs[rank].clone();
      EXPECT_TRUE(at::equal(quantized_all_reduce(x, WireFormat::kInt4B32, group, levels), expected));
      EXPECT_TRUE(at::equal(run_operator(x, "int4_b32", registered.name(), name), expected));
      EXPECT_TRUE(at::equal(x, inputs[rank])) << "x is left alone";
      quantized_all_reduce_(x, WireFormat::kInt4B32, group, levels);
      EXPECT_TRUE(at::equal(x, expected));
      const at::Tensor y = inputs[rank].clone();
      run_operator_(y, "int4_b32", registered.name(), name);
      EXPECT_TRUE(at::equal(y, expected));
    });
  }
}

// A module that was saved before there were levels has calls with three arguments.
TEST(QuantizedAllReduce, IsCalledFromScriptsWithAndWithoutLevels) {
  const torch::jit::Module script = test::compile(R"(
def without(self, x, group: str):
    y = x.clone()
    narrowcast.quantized_all_reduce_(y, "int4_b32", group)
    return y, narrowcast.quantized_all_reduce(x, "int4_b32", group)
def with_levels(self, x, group: str, levels: str):
    y = x.clone()
    narrowcast.quantized_all_reduce_(y, "int4_b32", group, levels)
    return y, narrowcast.quantized_all_reduce(x, "int4_b32", group, levels=levels)
)");
  const auto inputs = make_inputs({5000});
  run_ranks(kRanks, [&](int64_t rank, const Group& group) {
    const test::RegisteredGroup registered(group);
    torch::jit::Module module = test::save_and_load(script);
    const auto expect_means = [&](const c10::IValue& means, Levels levels) {
      for (const c10::IValue& mean : means.toTupleRef().elements()) {
        EXPECT_TRUE(at::equal(mean.toTensor(), expected_mean(WireFormat::kInt4B32, levels, inputs)))
            << to_string(levels);
      }
    };
    expect_means(module.run_method("without", inputs[rank], registered.name()), Levels::kAuto);
    for (const Levels levels : kEveryLevels) {
      expect_means(module.run_method("with_levels", inputs[rank], registered.name(), std::string(to_string(levels))),
                   levels);
    }
  });
}

TEST(QuantizedAllReduce, TakesAnyLayoutAndDtypeInMemoryOrderOfTheContiguousTensor) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    auto inputs = make_inputs({600, 500});
    for (at::Tensor& input : inputs) input = input.to(dtype).t();
    std::vector<at::Tensor> contiguous;
    for (const at::Tensor& input : inputs) contiguous.push_back(input.contiguous());
    run_ranks(kRanks, [&](int64_t rank, const Group& group) {
      for (const Levels levels : {Levels::kOne, Levels::kTwo}) {
        const at::Tensor expected = expected_mean(WireFormat::kInt8B128, levels, contiguous);
        EXPECT_TRUE(at::equal(quantized_all_reduce(inputs[rank], WireFormat::kInt8B128, group, levels), expected))
            << dtype;
        const at::Tensor x = inputs[rank].clone();
        ASSERT_FALSE(x.is_contiguous());
        quantized_all_reduce_(x, WireFormat::kInt8B128, group, levels);
        EXPECT_TRUE(at::equal(x, expected)) << dtype;
      }
    });
  }
}

// Calls of a group that is used again after errors.
class RanksThatDisagree : public ::testing::TestWithParam<int64_t> {
 protected:
  using Make = std::function<void(int64_t rank, const Group& group)>;

  // All ranks make the call and get the same error. The next call averages again.
  template <class Error = c10::ValueError>
  static void expect_on_all(const std::string& expected, const Make& make) {
    run_ranks(GetParam(), [&](int64_t rank, const Group& group) {
      call_of(kNumel, rank, group);
      EXPECT_EQ(error_message<Error>([&] { make(rank, group); }), "quantized_all_reduce" + expected);
      call_of(kNumel, rank, group);
      call_of(3, rank, group);
    });
  }

  static constexpr int64_t kNumel = 40'001;

 private:
  static void call_of(int64_t numel, int64_t rank, const Group& group) {
    const at::Tensor x = at::full({numel}, rank, at::kFloat);
    quantized_all_reduce_(x, WireFormat::kFp32, group);
    EXPECT_TRUE(x.eq(static_cast<float>(GetParam() - 1) / 2).all().item<bool>());
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, RanksThatDisagree, ::testing::Values(2, 3, 4, 5));

TEST_P(RanksThatDisagree, OnTheNumberOfElementsAllThrowTheSame) {
  const int64_t last = GetParam() - 1;
  expect_on_all(": numel of x differs between ranks: rank 0 has 40001, rank " + std::to_string(last) + " has 40002",
                [&](int64_t rank, const Group& group) {
                  const at::Tensor x = at::ones({rank == last ? kNumel + 1 : kNumel});
                  try {
                    quantized_all_reduce_(x, WireFormat::kFp32, group);
                  } catch (...) {
                    EXPECT_TRUE(x.eq(1).all().item<bool>());
                    throw;
                  }
                });
}

// All ranks except the first call with the size of their last call.
TEST_P(RanksThatDisagree, WhereSomeCallWithARememberedSize) {
  expect_on_all(": numel of x differs between ranks: rank 0 has 3, rank 1 has 40001",
                [&](int64_t rank, const Group& group) {
                  quantized_all_reduce(at::ones({rank == 0 ? 3 : kNumel}), WireFormat::kFp32, group);
                });
}

TEST_P(RanksThatDisagree, OnTheFormatAllThrowTheSame) {
  expect_on_all(": format differs between ranks: rank 0 has fp32, rank 1 has int8_b32",
                [&](int64_t rank, const Group& group) {
                  quantized_all_reduce(at::ones({kNumel}), rank == 1 ? WireFormat::kInt8B32 : WireFormat::kFp32, group);
                });
}

TEST_P(RanksThatDisagree, OnTheLevelsAllThrowTheSame) {
  expect_on_all(
      ": levels differs between ranks: rank 0 has auto, rank 1 has one", [&](int64_t rank, const Group& group) {
        quantized_all_reduce(at::ones({kNumel}), WireFormat::kFp32, group, rank == 1 ? Levels::kOne : Levels::kAuto);
      });
  expect_on_all(" on rank 1: levels: must be auto, one or two, but is 'three'", [&](int64_t rank, const Group& group) {
    run_operator(at::ones({kNumel}), "fp32", test::RegisteredGroup(group).name(), rank == 1 ? "three" : "two");
  });
}

TEST_P(RanksThatDisagree, AreToldWhatOneOfThemFindsWrongWithItsOwnTensor) {
  const std::string rank_1 = " on rank 1: ";
  expect_on_all(rank_1 + "x has elements that overlap in memory: its sizes are [40001], its strides [0]",
                [](int64_t rank, const Group& group) {
                  const at::Tensor x = rank == 1 ? at::ones({1}).expand({kNumel}) : at::ones({kNumel});
                  quantized_all_reduce_(x, WireFormat::kFp32, group);
                });
  expect_on_all<c10::TypeError>(rank_1 + "x must be float32, float64, bfloat16 or float16, not Int",
                                [](int64_t rank, const Group& group) {
                                  const at::Tensor x = at::ones({kNumel}, rank == 1 ? at::kInt : at::kFloat);
                                  quantized_all_reduce(x, WireFormat::kFp32, group);
                                });
  expect_on_all(rank_1 + "x must be on the CPU or a GPU, but is on meta", [](int64_t rank, const Group& group) {
    const at::Tensor x = at::ones({kNumel}, rank == 1 ? at::kMeta : at::kCPU);
    quantized_all_reduce(x, WireFormat::kFp32, group);
  });
}

TEST_P(RanksThatDisagree, AreToldWhatAutogradDoesNotLetOneOfThemWrite) {
  for (const bool as_operator : {false, true}) {
    expect_on_all(
        " on rank 1: x cannot be written in place: a leaf Variable that requires grad is being used in an in-place"
        " operation.",
        [&](int64_t rank, const Group& group) {
          const at::Tensor x = at::ones({kNumel}).requires_grad_(rank == 1);
          if (as_operator) {
            run_operator_(x, "fp32", test::RegisteredGroup(group).name());
          } else {
            quantized_all_reduce_(x, WireFormat::kFp32, group);
          }
        });
  }
}

// A tensor with several elements in one place cannot be written to. The check finds exactly the strides of such
// tensors.
TEST(QuantizedAllReduce, WritesToAnyTensorWithoutOverlap) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const at::Tensor memory = at::full({100}, rank, at::kFloat);
    for (const at::Tensor& x : {memory.as_strided({2, 3}, {3, 2}), memory.view({10, 10}).narrow(1, 2, 3).t(),
                                memory.as_strided({2, 1, 3}, {10, 0, 2}), memory.narrow(0, 0, 0)}) {
      memory.fill_(rank);
      quantized_all_reduce_(x, WireFormat::kFp32, group);
      EXPECT_TRUE(x.eq(0.5).all().item<bool>());
    }
    memory.fill_(1);
    for (const at::Tensor& x : {memory.as_strided({3, 3}, {1, 1}), memory.as_strided({2, 3, 4}, {12, 3, 2})}) {
      EXPECT_THAT(error_message<c10::ValueError>([&] { quantized_all_reduce_(x, WireFormat::kFp32, group); }),
                  HasSubstr("x has elements that overlap in memory"));
      EXPECT_TRUE(at::equal(quantized_all_reduce(x, WireFormat::kFp32, group), x)) << "which is only read";
    }
  });
}

// The message of a peer is not an announcement, or has more bytes after it.
TEST(QuantizedAllReduce, DoesNotTakeOtherBytesForACall) {
  class OtherBytes final : public engine::Job {
   public:
    explicit OtherBytes(at::Tensor sent) : sent_(std::move(sent)) {}
    std::string name() const override { return "other bytes"; }
    void start(engine::Transport& transport) override {
      received_ = at::empty({collectives::kAnnouncementBytes}, at::kByte);
      receive_ = transport.post_receive({received_, 0, engine::Transport::kChannels - 1});
      transport.send({sent_, 0, engine::Transport::kChannels - 1});
    }
    at::Tensor finish(engine::Transport& transport) override {
      transport.wait_receive(receive_);
      return {};
    }

   private:
    const at::Tensor sent_;
    at::Tensor received_;
    int64_t receive_ = 0;
  };
  const at::Tensor x = at::ones({5});
  const at::Tensor call = collectives::slot_of(collectives::announcement_of(x, {WireFormat::kFp32}));
  const at::Tensor with_more = call.clone();
  with_more[-1] = 1;
  for (const at::Tensor& bytes : {at::full_like(call, 0x7F), with_more}) {
    run_ranks(2, [&](int64_t rank, const Group& group) {
      if (rank == 1) {
        engine::Engine::for_group(group)->submit(std::make_shared<OtherBytes>(bytes))->waitAndThrow();
        return;
      }
      EXPECT_THAT(error_message<c10::DistBackendError>([&] { quantized_all_reduce(x, WireFormat::kFp32, group); }),
                  HasSubstr("rank 0: quantized_all_reduce failed: rank 1 sent a message that is not an announcement"));
    });
  }
}

TEST(QuantizedAllReduce, RefusesArgumentsBeforeDataIsSent) {
  run_ranks(1, [](int64_t, const Group& group) {
    const test::RegisteredGroup registered(group);
    const std::string& name = registered.name();
    EXPECT_THAT(error_message<c10::TypeError>([&] { run_operator_(at::ones({2}, at::kInt), "int8_b32", name); }),
                AllOf(HasSubstr("x must be float32"), HasSubstr("Int")));
    EXPECT_THAT(error_message<c10::ValueError>([&] { run_operator(at::ones({2}), "int7", name); }),
                AllOf(HasSubstr("int7"), HasSubstr("int8_b128")));
    EXPECT_THAT(error_message<c10::ValueError>([&] { run_operator_(at::ones({2}), "fp32", name, ""); }),
                HasSubstr("levels: must be auto, one or two, but is ''"));
    EXPECT_THAT(error_message<c10::ValueError>([&] { run_operator(at::ones({2}), "int8_b32", "nobody"); }),
                HasSubstr("group_name: no process group is registered as \"nobody\""));
    EXPECT_THAT(error_message<c10::ValueError>([&] { quantized_all_reduce({}, WireFormat::kFp32, group); }),
                HasSubstr("x is an undefined tensor"));
    EXPECT_THAT(error_message<c10::ValueError>([&] { quantized_all_reduce(at::ones({2}), WireFormat::kFp32, {}); }),
                HasSubstr("group must be a process group"));
  });
}

TEST(QuantizedAllReduce, KnowsItsOutputOnTheMetaDevice) {
  const at::Tensor x = at::empty({3, 4}, at::dtype(at::kHalf).device(at::kMeta)).t();
  const at::Tensor mean = run_operator(x, "int8_b128", "nobody");
  EXPECT_EQ(mean.sizes(), at::IntArrayRef({4, 3}));
  EXPECT_EQ(mean.scalar_type(), at::kHalf);
  EXPECT_TRUE(mean.is_meta() && mean.is_contiguous());
  EXPECT_NO_THROW(run_operator_(x, "int8_b128", "nobody", "two"));
  EXPECT_THROW(run_operator(x, "int8_b128", "nobody", "three"), c10::ValueError);
}

TEST(QuantizedAllReduce, HasNoDerivativeAndSaysSo) {
  run_ranks(1, [](int64_t, const Group& group) {
    const test::RegisteredGroup registered(group);
    const auto backward_error = [](const at::Tensor& result) {
      return error_message<c10::Error>([&] { result.sum().backward(); });
    };
    const at::Tensor leaf = at::ones({3}).requires_grad_();
    EXPECT_THAT(backward_error(run_operator(leaf, "int8_b32", registered.name())), HasSubstr("quantized_all_reduce"));
    EXPECT_THAT(backward_error(quantized_all_reduce(leaf, WireFormat::kFp32, group)), HasSubstr("not implemented"));
    at::Tensor inner = leaf * 2;
    run_operator_(inner, "int8_b32", registered.name());
    EXPECT_THAT(backward_error(inner), HasSubstr("not implemented"));
  });
}

}  // namespace
}  // namespace narrowcast
