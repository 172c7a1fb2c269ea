// The asynchronous form: its work and its future.
#include "ops/collectives/auto_quantize/exchange.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <exception>
#include <future>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <narrowcast/auto_quantize.h>
#include "ops/collectives/auto_quantize/agreement.h"
#include "ops/collectives/auto_quantize/plan.h"
#include "tests/ops/quantize_tensor/reference.h"
#include "tests/support/error_message.h"
#include "tests/support/patience.h"
#include "tests/support/ranks.h"
#include "tests/support/recorded_group.h"

namespace narrowcast {
namespace {

using collectives::Group;
using test::same_bits;
using testing::error_message;
using ::testing::HasSubstr;
using testing::run_ranks;

const auto kAllGather = auto_quantize(collectives::all_gather, DQuantType::kFp16);

TEST(DecodingWork, CompletesItsFutureThoughNobodyWaitsForTheWork) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const std::vector<at::Tensor> outputs{at::zeros({3}), at::zeros({3})};
    const auto future = kAllGather.async(outputs, at::full({3}, rank + 1, at::kFloat), group)->getFuture();
    future->waitAndThrow();  // The work itself is destroyed.
    const auto value = future->value().toTensorVector();
    ASSERT_EQ(value.size(), 2);
    EXPECT_TRUE(value[1].is_same(outputs[1]));
    EXPECT_TRUE(same_bits(at::stack(outputs), at::tensor({1.F, 2.F}).unsqueeze(1).expand({2, 3})));
  });
}

TEST(DecodingWork, RunsCallbacksWithTheOutputsWritten) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const std::vector<at::Tensor> outputs{at::zeros({3}), at::zeros({3})};
    const auto work = kAllGather.async(outputs, at::full({3}, rank + 1, at::kFloat), group);
    const auto sum = work->getFuture()->then(
        [](c10::ivalue::Future& done) { return at::stack(done.value().toTensorVector()).sum(); },
        c10::TensorType::get());
    sum->waitAndThrow();
    EXPECT_EQ(sum->value().toTensor().item<float>(), 9);
  });
}

TEST(DecodingWork, CanBePolledAndWaitedForTwice) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const std::vector<at::Tensor> outputs{at::zeros({3}), at::zeros({3})};
    const auto work = kAllGather.async(outputs, at::full({3}, rank + 1, at::kFloat), group);
    while (!work->isCompleted()) testing::pause_between_looks();
    EXPECT_TRUE(work->isSuccess());
    EXPECT_EQ(work->exception(), nullptr);
    EXPECT_EQ(outputs[1].sum().item<float>(), 6);
    EXPECT_TRUE(work->wait());
    EXPECT_TRUE(work->wait(std::chrono::milliseconds(1)));
    EXPECT_TRUE(work->result()[1].is_same(outputs[1]));
  });
}

// NCCL can be configured to search floats for NaN, and then ends the process.
TEST(Exchange, SendsCodesAsBytes) {
  run_ranks(2, [](int64_t, const Group& group) {
    const auto record = std::make_shared<testing::CollectiveRecord>();
    const Group noted = testing::recorded(group, record);
    const at::Tensor input = at::full({6}, std::numeric_limits<float>::quiet_NaN());
    const at::Tensor output = at::zeros({6});
    auto_quantize(collectives::all_to_all_single, DQuantType::kBfp16)(output, input, noted);
    auto_quantize(collectives::all_gather, DQuantType::kFp16)({at::zeros({6}), output}, input, noted);
    EXPECT_TRUE(output.isnan().all().item<bool>());
    EXPECT_EQ(record->size(), 4U) << "what ranks announce, and codes, of each call";
    for (const testing::RecordedCollective& collective : *record) {
      EXPECT_EQ(collective.sent.scalar_type(), at::kByte);
    }
  });
}

// A transfer on a GPU: its future is complete at once; the transfer itself completes later, or never.
class EnqueuedTransfer final : public c10d::Work {
 public:
  EnqueuedTransfer() : Work(0, c10d::OpType::ALLGATHER) { future_->markCompleted(std::vector<at::Tensor>()); }
  bool isCompleted() override { return arrived || exception() != nullptr; }
  std::exception_ptr exception() const override { return error; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  bool arrived = false;
  std::exception_ptr error;

 private:
  const c10::intrusive_ptr<c10::ivalue::Future> future_ =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
};

collectives::InFlight enqueued(const c10::intrusive_ptr<EnqueuedTransfer>& transfer) {
  collectives::InFlight in_flight{
      .exchange = {}, .sent = {}, .received = at::ones({3}, at::kHalf), .work = transfer, .is_enqueued = true};
  in_flight.exchange.targets = {at::zeros({3})};
  return in_flight;
}

TEST(DecodingWork, IsCompleteWhenAnEnqueuedTransferIs) {
  const auto transfer = c10::make_intrusive<EnqueuedTransfer>();
  const auto work = collectives::decode_when_complete(enqueued(transfer));
  EXPECT_FALSE(work->isCompleted());
  EXPECT_FALSE(work->isSuccess());
  transfer->arrived = true;
  EXPECT_TRUE(work->isCompleted());
  EXPECT_TRUE(work->isSuccess());
  EXPECT_EQ(work->exception(), nullptr);
}

TEST(DecodingWork, TellsWhyAnEnqueuedTransferFailed) {
  const auto transfer = c10::make_intrusive<EnqueuedTransfer>();
  const auto work = collectives::decode_when_complete(enqueued(transfer));
  EXPECT_EQ(work->exception(), nullptr);
  transfer->error = std::make_exception_ptr(std::runtime_error("a peer is gone"));
  EXPECT_TRUE(work->isCompleted());
  EXPECT_FALSE(work->isSuccess());
  EXPECT_NE(work->exception(), nullptr);
}

// Several transfers at once, waited for in another order than they were started.
TEST(DecodingWork, OverlapsWithOthers) {
  run_ranks(3, [](int64_t rank, const Group& group) {
    std::vector<std::vector<at::Tensor>> outputs;
    std::vector<collectives::Work> works;
    for (int64_t call = 0; call < 8; ++call) {
      outputs.push_back({at::zeros({1000}), at::zeros({1000}), at::zeros({1000})});
      works.push_back(kAllGather.async(outputs.back(), at::full({1000}, 10 * call + rank, at::kFloat), group));
    }
    for (int64_t call = 7; call >= 0; --call) {
      works[static_cast<size_t>(call)]->wait();
      EXPECT_EQ(outputs[static_cast<size_t>(call)][2].sum().item<int64_t>(), 1000 * (10 * call + 2));
    }
  });
}

TEST(DecodingWork, LeavesTheInputFree) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const at::Tensor input = at::full({1 << 20}, rank + 1, at::kFloat);
    const std::vector<at::Tensor> outputs{at::zeros_like(input), at::zeros_like(input)};
    const auto work = kAllGather.async(outputs, input, group);
    input.fill_(99);
    work->wait();
    EXPECT_EQ(outputs[0].max().item<float>(), 1);
    EXPECT_EQ(outputs[1].max().item<float>(), 2);
  });
}

// The last owner of the work is then a thread of the group, which must not end the group from there.
TEST(DecodingWork, OutlivesItsGroup) {
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> done(2);
  run_ranks(2, [&](int64_t rank, const Group& group) {
    const std::vector<at::Tensor> outputs{at::zeros({1 << 20}), at::zeros({1 << 20})};
    const auto work = kAllGather.async(outputs, at::full({1 << 20}, rank + 1, at::kFloat), group);
    done[static_cast<size_t>(rank)] = work->getFuture()->then(
        [work](c10::ivalue::Future&) { return work->result()[1].max(); }, c10::TensorType::get());
  });
  for (const auto& future : done) {
    future->waitAndThrow();
    EXPECT_EQ(future->value().toTensor().item<float>(), 2);
  }
}

// Rank 1 agrees on the sizes and then dies instead of sending its data.
TEST(DecodingWorkDeathTest, FailsWhenAPeerDoesAndLeavesTheOutputs) {
  const auto codes = testing::fork_ranks(2, [](int64_t rank, const Group& group) {
    const std::vector<at::Tensor> outputs{at::full({3}, -1.F), at::full({3}, -1.F)};
    if (rank == 1) {
      const auto as_fp16 = [] { return collectives::Encoding{}; };
      collectives::agree(collectives::plan_all_gather(group, as_fp16, outputs, at::ones({3})));
      ::_exit(9);
    }
    const auto work = kAllGather.async(outputs, at::ones({3}), group);
    for (const auto timeout : {std::chrono::milliseconds(1), kNoTimeout}) {
      EXPECT_THAT(error_message<c10::DistBackendError>([&] { work->wait(timeout); }),
                  HasSubstr("rank 0: auto_quantize_all_gather failed: "));
    }
    EXPECT_FALSE(work->isSuccess());
    EXPECT_NE(work->exception(), nullptr);
    EXPECT_TRUE(work->getFuture()->hasError());
    EXPECT_TRUE(same_bits(at::cat(outputs), at::full({6}, -1.F)));
  });
  EXPECT_THAT(codes, ::testing::ElementsAre(testing::kRankPassed, 9));
}

}  // namespace
}  // namespace narrowcast
