// The auto_quantize collectives of CUDA tensors over NCCL. Needs a GPU, which the ranks share.
#include <narrowcast/auto_quantize.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/ops/collectives/auto_quantize/calls.h"
#include "tests/ops/quantize_tensor/reference.h"
#include "tests/support/busy_gpu.h"
#include "tests/support/nccl/nccl_ranks.h"

namespace narrowcast {
namespace {

using test::Call;
using test::Group;
using test::same_bits;
using testing::run_nccl_ranks;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kGpuWorld = 2;

// The received values of a tensor.
at::Tensor as_it_arrives(const at::Tensor& x, const Call& call) {
  return dequantize_tensor(quantize_tensor(x, call.qtype), call.qtype, call.quant_loss);
}

// The values that `sender` sends to `receiver`; all ranks can compute them.
at::Tensor values_on_gpu(int64_t sender, int64_t receiver, at::IntArrayRef shape) {
  const at::Tensor index = at::arange(c10::multiply_integers(shape), at::kFloat).view(shape);
  return (at::sin(index * 0.37 + static_cast<double>(7 * sender + receiver)) * 1000).cuda();
}

at::Tensor empty_on_gpu(at::IntArrayRef shape) { return at::empty(shape, at::kCUDA); }

// Every way to call, in every format. A body runs on all ranks.
template <class Body>
void for_each_call(const Body& body) {
  run_nccl_ranks(kGpuWorld, [&](int64_t rank, const Group& group) {
    for (const test::Way way : test::kWays) {
      for (const DQuantType qtype : test::kDQuantTypes) {
        SCOPED_TRACE(::testing::Message() << to_string(qtype) << ", way " << static_cast<int>(way));
        body(Call{.way = way, .qtype = qtype, .quant_loss = 1.7}, rank, group);
      }
    }
  });
}

TEST(CudaAutoQuantize, AllGatherTakesInputsOfAnySizes) {
  const std::vector<std::vector<int64_t>> shapes{{}, {300, 7}};
  for_each_call([&](const Call& call, int64_t rank, const Group& group) {
    const Tensors outputs{empty_on_gpu(shapes[0]), empty_on_gpu(shapes[1])};
    test::all_gather(call, outputs, values_on_gpu(rank, 0, shapes[static_cast<size_t>(rank)]), group);
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_TRUE(same_bits(outputs[i], as_it_arrives(values_on_gpu(static_cast<int64_t>(i), 0, shapes[i]), call)));
    }
  });
}

TEST(CudaAutoQuantize, AllToAllTakesAnyShapesAndNothing) {
  const auto shape = [](int64_t from, int64_t to) { return std::vector<int64_t>{from + 2 * to, 5, to + 1}; };
  for_each_call([&](const Call& call, int64_t rank, const Group& group) {
    Tensors inputs;
    Tensors outputs;
    for (int64_t i = 0; i < kGpuWorld; ++i) {
      inputs.push_back(values_on_gpu(rank, i, shape(rank, i)));
      outputs.push_back(empty_on_gpu(shape(i, rank)));
    }
    test::all_to_all(call, outputs, inputs, group);
    for (int64_t i = 0; i < kGpuWorld; ++i) {
      EXPECT_TRUE(
          same_bits(outputs[static_cast<size_t>(i)], as_it_arrives(values_on_gpu(i, rank, shape(i, rank)), call)));
    }
  });
}

// Rank r gets r + 1 rows of each rank, in place if the sizes are equal.
TEST(CudaAutoQuantize, AllToAllSingleTakesSplits) {
  for_each_call([&](const Call& call, int64_t rank, const Group& group) {
    const at::Tensor input = at::cat({values_on_gpu(rank, 0, {1, 9}), values_on_gpu(rank, 1, {2, 9})});
    const at::Tensor output = empty_on_gpu({2 * (rank + 1), 9});
    test::all_to_all_single(call, output, input, {{rank + 1, rank + 1}, {1, 2}}, group);
    const Tensors expected{values_on_gpu(0, rank, {rank + 1, 9}), values_on_gpu(1, rank, {rank + 1, 9})};
    EXPECT_TRUE(same_bits(output, as_it_arrives(at::cat(expected), call)));
  });
}

TEST(CudaAutoQuantize, WritesStridedOutputsInTheirDtype) {
  for_each_call([&](const Call& call, int64_t rank, const Group& group) {
    for (const at::ScalarType dtype : test::kFloatTypes) {
      const at::Tensor base = at::full({3, 2 * kGpuWorld, 4}, -5, at::device(at::kCUDA).dtype(dtype));
      const Tensors outputs{base.select(1, 0).t(), base.select(1, 2).t()};
      test::all_gather(call, outputs, values_on_gpu(rank, 0, {3, 4}).t(), group);
      for (int64_t i = 0; i < kGpuWorld; ++i) {
        const at::Tensor expected = as_it_arrives(values_on_gpu(i, 0, {3, 4}), call).to(dtype);
        EXPECT_TRUE(same_bits(base.select(1, 2 * i), expected));
        EXPECT_TRUE(base.select(1, 2 * i + 1).eq(-5).all().item<bool>()) << "beside the outputs";
      }
    }
  });
}

constexpr int64_t kGatheredNumel = 1 << 20;
const auto kGather = auto_quantize(collectives::all_gather, DQuantType::kFp16);

struct Gathered {
  Tensors outputs{at::zeros({kGatheredNumel}, at::kCUDA), at::zeros({kGatheredNumel}, at::kCUDA)};

  // Rank r's numbers are `first` + r.
  void expect(double first) const {
    for (int64_t rank = 0; rank < kGpuWorld; ++rank) {
      EXPECT_TRUE(outputs[static_cast<size_t>(rank)].eq(first + static_cast<double>(rank)).all().item<bool>());
    }
  }
};

// The input is filled behind long kernels and overwritten at once; the outputs are read behind others.
TEST(CudaDecodingWork, IsInTheOrderOfTheCallersStream) {
  run_nccl_ranks(kGpuWorld, [](int64_t rank, const Group& group) {
    const Gathered gathered;
    at::Tensor input = at::zeros({kGatheredNumel}, at::kCUDA);
    test::keep_gpu_busy();
    input.fill_(rank + 1);
    const auto work = kGather.async(gathered.outputs, input, group);
    input.fill_(99);
    input.reset();
    test::overwrite_free_memory(gathered.outputs[0]);
    work->wait();
    test::keep_gpu_busy();
    gathered.expect(1);
    EXPECT_TRUE(work->isSuccess());
    EXPECT_EQ(work->exception(), nullptr);
    EXPECT_TRUE(work->wait()) << "twice";
  });
}

TEST(CudaDecodingWork, RunsCallbacksWithTheOutputsWritten) {
  run_nccl_ranks(kGpuWorld, [](int64_t rank, const Group& group) {
    const Gathered gathered;
    const at::Tensor input = at::zeros({kGatheredNumel}, at::kCUDA);
    test::keep_gpu_busy();
    input.fill_(rank + 1);
    const auto sum =
        kGather.async(gathered.outputs, input, group)
            ->getFuture()
            ->then([](c10::ivalue::Future& done) { return at::stack(done.value().toTensorVector()).sum(); },
                   c10::TensorType::get());
    sum->waitAndThrow();
    EXPECT_EQ(sum->value().toTensor().item<float>(), 3 * kGatheredNumel);
  });
}

// Several transfers at once, waited for in another order than they were started, after their works are destroyed.
TEST(CudaDecodingWork, OverlapsWithOthers) {
  run_nccl_ranks(kGpuWorld, [](int64_t rank, const Group& group) {
    std::vector<Gathered> gathered(8);
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    for (int64_t call = 0; call < 8; ++call) {
      const at::Tensor input = at::full({kGatheredNumel}, static_cast<double>(10 * call + rank), at::kCUDA);
      futures.push_back(kGather.async(gathered[static_cast<size_t>(call)].outputs, input, group)->getFuture());
    }
    for (int64_t call = 7; call >= 0; --call) {
      futures[static_cast<size_t>(call)]->waitAndThrow();
      gathered[static_cast<size_t>(call)].expect(static_cast<double>(10 * call));
    }
  });
}

}  // namespace
}  // namespace narrowcast
