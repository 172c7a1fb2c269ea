#include <narrowcast/quantized_reduce_scatter.h>

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include <narrowcast/quantized_all_reduce.h>
#include "ops/operators/dispatch.h"
#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/collectives/reduce_scatter/plain_reduce_scatter.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/support/registered_group.h"

namespace narrowcast {
namespace {

using test::PlainReduceScatter;
using test::reduce_scatter_inputs;
using test::same_bits;
using testing::error_message;
using ::testing::HasSubstr;
using testing::RegisteredGroup;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

void run_operator(const at::Tensor& shard, const at::Tensor& input, const std::string& format, const std::string& op,
                  const std::string& group) {
  static const auto handle =
      find_operator<void(const at::Tensor&, const at::Tensor&, std::string_view, std::string_view, std::string_view)>(
          "narrowcast::quantized_reduce_scatter_");
  handle.call(shard, input, format, op, group);
}

struct ReduceScatterCase {
  PlainReduceScatter plain;
  std::vector<at::Tensor> inputs;  // By rank.
};

class QuantizedReduceScatter : public ::testing::TestWithParam<int64_t> {
 protected:
  const int64_t world_ = GetParam();

  // In C++ and by the operator. One group for all cases: joining it takes longer than most of them.
  void expect_shards(const std::vector<ReduceScatterCase>& cases) const {
    run_ranks(world_, [&](int64_t rank, const Group& group) {
      const RegisteredGroup registered(group);
      for (const auto& [plain, inputs] : cases) {
        SCOPED_TRACE(::testing::Message() << plain.format << " " << plain.reduction << " of " << inputs[0].scalar_type()
                                          << " " << inputs[0].sizes() << " to " << plain.dtype);
        const at::Tensor& input = inputs[rank];
        const at::Tensor expected = plain.shard_of(rank, inputs);
        const at::Tensor shard = at::full_like(expected, 99);
        quantized_reduce_scatter_(shard, input, plain.format, plain.reduction, group);
        EXPECT_TRUE(same_bits(shard, expected));
        shard.fill_(99);
        run_operator(shard, input, std::string(to_string(plain.format)), std::string(to_string(plain.reduction)),
                     registered.name());
        EXPECT_TRUE(same_bits(shard, expected));
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, QuantizedReduceScatter, ::testing::Values(1, 2, 3, 4, 5, 8));

TEST_P(QuantizedReduceScatter, HasTheBitsOfTensorOperationsInEveryFormat) {
  std::vector<ReduceScatterCase> cases;
  for (const WireFormat format : kWireFormats) {
    for (const Reduction reduction : test::kReductions) {
      cases.push_back({{format, reduction}, reduce_scatter_inputs(world_, 1501)});
    }
  }
  expect_shards(cases);
}

TEST_P(QuantizedReduceScatter, TakesShardsOfAnySize) {
  std::vector<ReduceScatterCase> cases;
  for (const int64_t numel : {0, 1, 31, 128, 1024, 4097}) {
    cases.push_back({{WireFormat::kInt6B32}, reduce_scatter_inputs(world_, numel)});
    cases.push_back({{WireFormat::kVar4}, reduce_scatter_inputs(world_, numel)});
  }
  expect_shards(cases);
}

// Messages of two chunks; those of a variable format cannot be split.
TEST_P(QuantizedReduceScatter, SendsLargeShardsInChunks) {
  if (world_ > 3) return;
  expect_shards({{{WireFormat::kInt8B128}, reduce_scatter_inputs(world_, 700'001)},
                 {{WireFormat::kVar6}, reduce_scatter_inputs(world_, 700'001)}});
}

TEST_P(QuantizedReduceScatter, TakesAnyDtypes) {
  std::vector<ReduceScatterCase> cases;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const auto of_shard : {dtype, at::kFloat, at::kHalf}) {
      for (const WireFormat format : {WireFormat::kInt8B128, WireFormat::kVar5}) {
        cases.push_back({{format, Reduction::kSum, of_shard}, reduce_scatter_inputs(world_, 777, dtype)});
      }
    }
  }
  expect_shards(cases);
}

TEST_P(QuantizedReduceScatter, TakesAnyStrides) {
  const auto inputs = reduce_scatter_inputs(world_, 600);
  run_ranks(world_, [&](int64_t rank, const Group& group) {
    const at::Tensor input = inputs[rank].t().contiguous().t();
    const at::Tensor memory = at::zeros({20, 60});
    const at::Tensor shard = memory.slice(1, 0, 60, 2).t();  // [30, 20]
    quantized_reduce_scatter_(shard, input, WireFormat::kInt4B32, Reduction::kMean, group);
    const at::Tensor expected = PlainReduceScatter{WireFormat::kInt4B32}.shard_of(rank, inputs);
    EXPECT_TRUE(same_bits(shard.contiguous().view({-1}), expected));
    EXPECT_EQ(memory.count_nonzero().item<int64_t>(), shard.count_nonzero().item<int64_t>()) << "beside the shard";
  });
}

TEST_P(QuantizedReduceScatter, MayReplaceAPartOfTheInput) {
  for (const int64_t numel : {1000, 300'000}) {
    const auto inputs = reduce_scatter_inputs(world_, numel);
    run_ranks(world_, [&](int64_t rank, const Group& group) {
      const at::Tensor input = inputs[rank].clone();
      const at::Tensor shard = input[rank];
      quantized_reduce_scatter_(shard, input, WireFormat::kInt8B32, Reduction::kSum, group);
      EXPECT_TRUE(same_bits(shard, PlainReduceScatter{WireFormat::kInt8B32, Reduction::kSum}.shard_of(rank, inputs)));
    });
  }
}

TEST_P(QuantizedReduceScatter, MayReplaceATransposedPartOfTheInput) {
  const auto inputs = reduce_scatter_inputs(world_, 600);
  run_ranks(world_, [&](int64_t rank, const Group& group) {
    const at::Tensor input = inputs[rank].view({world_, 30, 20}).clone();
    const at::Tensor shard = input[rank].t();
    quantized_reduce_scatter_(shard, input, WireFormat::kInt8B32, Reduction::kMean, group);
    const at::Tensor expected = PlainReduceScatter{WireFormat::kInt8B32}.shard_of(rank, inputs);
    EXPECT_TRUE(same_bits(shard.contiguous().view({-1}), expected));
  });
}

TEST_P(QuantizedReduceScatter, KeepsNanAndInf) {
  std::vector<ReduceScatterCase> cases;
  for (const WireFormat format : kWireFormats) {
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      cases.push_back({{format}, reduce_scatter_inputs(world_, 1000)});
      const auto& [plain, inputs] = cases.back();
      inputs.back()[0][700] = value;
      EXPECT_FALSE(plain.shard_of(0, inputs)[700].isfinite().item<bool>()) << format << " " << value;
    }
  }
  expect_shards(cases);
}

// Calls of a group that is used again after errors.
class ReduceScatterRanksThatDisagree : public ::testing::TestWithParam<int64_t> {
 protected:
  using Make = std::function<void(int64_t rank, const Group& group)>;

  // All ranks make the call and get the same error. The next call is right again.
  template <class Error = c10::ValueError>
  static void expect_on_all(const std::string& expected, const Make& make) {
    run_ranks(GetParam(), [&](int64_t rank, const Group& group) {
      expect_right(rank, group);
      EXPECT_EQ(error_message<Error>([&] { make(rank, group); }), expected);
      expect_right(rank, group);
    });
  }

  // Returns the shard.
  static at::Tensor call(const at::Tensor& input, const Group& group, WireFormat format = WireFormat::kFp32,
                         Reduction reduction = Reduction::kMean) {
    const at::Tensor shard = at::zeros({input.numel() / group->getSize()}, input.options());
    quantized_reduce_scatter_(shard, input, format, reduction, group);
    return shard;
  }

  static at::Tensor ones(const Group& group, int64_t more = 0) {
    return at::ones({group->getSize() * (kNumel + more)});
  }

  static constexpr int64_t kNumel = 5'001;

 private:
  static void expect_right(int64_t rank, const Group& group) {
    const at::Tensor input = at::full({GetParam() * kNumel}, rank, at::kFloat);
    EXPECT_TRUE(call(input, group).eq(static_cast<float>(GetParam() - 1) / 2).all().item<bool>());
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, ReduceScatterRanksThatDisagree, ::testing::Values(2, 3, 4, 5));

TEST_P(ReduceScatterRanksThatDisagree, OnArgumentsAllThrowTheSame) {
  const int64_t last = GetParam() - 1;
  const auto differs = [&](const std::string& what, const std::string& first, const std::string& other) {
    return "quantized_reduce_scatter: " + what + " differs between ranks: rank 0 has " + first + ", rank " +
           std::to_string(last) + " has " + other;
  };
  expect_on_all(differs("format", "fp32", "int8_b32"), [&](int64_t rank, const Group& group) {
    call(ones(group), group, rank == last ? WireFormat::kInt8B32 : WireFormat::kFp32);
  });
  expect_on_all(differs("op", "mean", "sum"), [&](int64_t rank, const Group& group) {
    call(ones(group), group, WireFormat::kFp32, rank == last ? Reduction::kSum : Reduction::kMean);
  });
  const auto numel = [](int64_t more) { return std::to_string(GetParam() * (kNumel + more)); };
  expect_on_all(differs("numel of input", numel(0), numel(1)),
                [&](int64_t rank, const Group& group) { call(ones(group, rank == last ? 1 : 0), group); });
  expect_on_all("call differs between ranks: rank 0 has quantized_reduce_scatter, rank " + std::to_string(last) +
                    " has quantized_all_reduce; all ranks must make the same calls in the same order",
                [&](int64_t rank, const Group& group) {
                  const at::Tensor input = ones(group);
                  rank == last ? quantized_all_reduce(input, WireFormat::kFp32, group) : call(input, group);
                });
}

TEST_P(ReduceScatterRanksThatDisagree, GetTheErrorOfOneRank) {
  const std::string rank_1 = "quantized_reduce_scatter on rank 1: ";
  const std::string world = std::to_string(GetParam());
  expect_on_all(rank_1 + "input must have " + world + " x 7 elements, one shard for each rank, but has " +
                    std::to_string(GetParam() * kNumel),
                [](int64_t rank, const Group& group) {
                  const at::Tensor shard = at::zeros({rank == 1 ? 7 : kNumel});
                  quantized_reduce_scatter_(shard, ones(group), WireFormat::kFp32, Reduction::kMean, group);
                });
  expect_on_all(rank_1 + "op: must be mean or sum, but is 'max'", [](int64_t rank, const Group& group) {
    const RegisteredGroup registered(group);
    run_operator(at::zeros({kNumel}), ones(group), "fp32", rank == 1 ? "max" : "sum", registered.name());
  });
  expect_on_all(rank_1 + "op: 5 is not a valid Reduction", [](int64_t rank, const Group& group) {
    call(ones(group), group, WireFormat::kFp32, rank == 1 ? static_cast<Reduction>(5) : Reduction::kMean);
  });
  expect_on_all<c10::TypeError>(
      rank_1 + "input must be float32, float64, bfloat16 or float16, not Int", [](int64_t rank, const Group& group) {
        const at::Tensor input = ones(group).to(rank == 1 ? at::kInt : at::kFloat);
        quantized_reduce_scatter_(at::zeros({kNumel}), input, WireFormat::kFp32, Reduction::kMean, group);
      });
  expect_on_all(rank_1 + "shard and input must be on one device, but are on meta and cpu",
                [](int64_t rank, const Group& group) {
                  const at::Tensor shard = at::zeros({kNumel}, rank == 1 ? at::kMeta : at::kCPU);
                  quantized_reduce_scatter_(shard, ones(group), WireFormat::kFp32, Reduction::kMean, group);
                });
  expect_on_all(rank_1 + "input must be on the CPU or a GPU, but is on meta", [](int64_t rank, const Group& group) {
    call(ones(group).to(rank == 1 ? at::kMeta : at::kCPU), group);
  });
  expect_on_all(rank_1 + "shard has elements that overlap in memory: its sizes are [5001], its strides [0]",
                [](int64_t rank, const Group& group) {
                  const at::Tensor shard = rank == 1 ? at::zeros({1}).expand({kNumel}) : at::zeros({kNumel});
                  quantized_reduce_scatter_(shard, ones(group), WireFormat::kFp32, Reduction::kMean, group);
                });
  for (const bool as_operator : {false, true}) {
    expect_on_all(rank_1 +
                      "shard cannot be written in place: a leaf Variable that requires grad is being used in an "
                      "in-place operation.",
                  [&](int64_t rank, const Group& group) {
                    const at::Tensor shard = at::zeros({kNumel}).requires_grad_(rank == 1);
                    if (as_operator) {
                      run_operator(shard, ones(group), "fp32", "mean", RegisteredGroup(group).name());
                    } else {
                      quantized_reduce_scatter_(shard, ones(group), WireFormat::kFp32, Reduction::kMean, group);
                    }
                  });
  }
}

// LibTorch's allocator, which has no more memory for large tensors of a thread.
class ScarceMemory final : public c10::Allocator {
 public:
  static thread_local bool has_none;

  c10::DataPtr allocate(size_t bytes) override {
    if (has_none && bytes > kLarge) throw std::bad_alloc();
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static constexpr size_t kLarge = 4096;
};
thread_local bool ScarceMemory::has_none = false;

TEST_P(ReduceScatterRanksThatDisagree, GetTheErrorOfOneRankWithoutMemory) {
  static ScarceMemory memory;  // LibTorch keeps the pointer.
  c10::SetCPUAllocator(&memory, 1);
  for (const bool plain_input : {true, false}) {
    for (const bool plain_shard : {true, false}) {
      expect_on_all(
          "quantized_reduce_scatter on rank 1: there is too little memory", [&](int64_t rank, const Group& group) {
            const at::Tensor input = at::ones({GetParam(), 200, 200});
            const at::Tensor shard = at::zeros({200, 200});
            ScarceMemory::has_none = rank == 1;
            const auto has_some = c10::make_scope_exit([] { ScarceMemory::has_none = false; });
            quantized_reduce_scatter_(plain_shard ? shard : shard.t(), plain_input ? input : input.transpose(1, 2),
                                      WireFormat::kFp32, Reduction::kMean, group);
          });
    }
  }
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), 1);
}

TEST(QuantizedReduceScatterAlone, RefusesArgumentsBeforeDataIsSent) {
  run_ranks(1, [](int64_t, const Group& group) {
    const at::Tensor x = at::ones({2});
    EXPECT_THAT(error_message<c10::ValueError>([&] { run_operator(x, x, "int8_b32", "mean", "nobody"); }),
                HasSubstr("group_name: no process group is registered as \"nobody\""));
    const auto refused = [&](const at::Tensor& shard, const at::Tensor& input, const Group& by) {
      return error_message<c10::ValueError>(
          [&] { quantized_reduce_scatter_(shard, input, WireFormat::kFp32, Reduction::kMean, by); });
    };
    EXPECT_THAT(refused({}, x, group), HasSubstr("shard is an undefined tensor"));
    EXPECT_THAT(refused(x, {}, group), HasSubstr("input is an undefined tensor"));
    EXPECT_THAT(refused(x, x, {}), HasSubstr("group must be a process group"));
  });
}

TEST(QuantizedReduceScatterAlone, ChecksItsArgumentsOnTheMetaDevice) {
  const at::Tensor shard = at::empty({3, 4}, at::dtype(at::kHalf).device(at::kMeta));
  const at::Tensor input = at::empty({24}, at::device(at::kMeta));
  EXPECT_NO_THROW(run_operator(shard, input, "int8_b128", "sum", "nobody"));
  EXPECT_THROW(run_operator(shard, input, "int8_b128", "max", "nobody"), c10::ValueError);
  EXPECT_THROW(run_operator(shard, input.to(at::kInt), "int8_b128", "sum", "nobody"), c10::TypeError);
}

TEST(QuantizedReduceScatterAlone, HasNoDerivative) {
  run_ranks(2, [](int64_t, const Group& group) {
    const RegisteredGroup registered(group);
    const at::Tensor input = at::ones({6}).requires_grad_();
    for (const bool as_operator : {false, true}) {
      const at::Tensor shard = at::zeros({3});
      if (as_operator) {
        run_operator(shard, input, "fp32", "mean", registered.name());
      } else {
        quantized_reduce_scatter_(shard, input, WireFormat::kFp32, Reduction::kMean, group);
      }
      EXPECT_TRUE(shard.eq(1).all().item<bool>());
      EXPECT_THAT(error_message<c10::Error>([&] { shard.sum().backward(); }),
                  HasSubstr("derivative for narrowcast::quantized_reduce_scatter_ is not implemented"));
    }
  });
}

TEST(ReductionNames, AreParsedAndPrinted) {
  for (const Reduction reduction : test::kReductions) {
    EXPECT_EQ(parse_reduction(to_string(reduction)), reduction);
  }
  std::ostringstream printed;
  printed << Reduction::kMean << " " << Reduction::kSum;
  EXPECT_EQ(printed.str(), "mean sum");
}

}  // namespace
}  // namespace narrowcast
