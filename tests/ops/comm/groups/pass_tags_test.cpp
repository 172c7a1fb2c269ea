#include "ops/comm/groups/pass_tags.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/quantized_all_reduce.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using ::testing::AllOf;
using testing::error_message;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::wait_for_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

Announcement tag_of(int64_t model, int64_t pass, const std::string& reason = "") {
  return {.call = c10::str("backward pass ", pass, " of model ", model),
          .refusal = reason.empty() ? std::nullopt : std::optional(Refusal{false, reason})};
}

// Records that it was started.
class StartedJob final : public engine::Job {
 public:
  std::string name() const override { return "a bucket"; }
  void start(engine::Transport&) override { started = true; }
  at::Tensor finish(engine::Transport&) override { return {}; }

  bool started = false;
};

class PassTagJobTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(PassTagJobTest, LetsTheBucketsOfTheSamePassStart) {
  run_ranks(GetParam(), [&](int64_t rank, const Group& group) {
    const auto engine = engine::Engine::for_group(group);
    for (int64_t pass = 1; pass < 4; ++pass) {
      const auto equal = engine->submit(std::make_shared<PassTagJob>(tag_of(1, pass), rank, GetParam()));
      const auto bucket = std::make_shared<StartedJob>();
      engine->submit(bucket)->waitAndThrow();
      equal->waitAndThrow();
      EXPECT_TRUE(bucket->started);
    }
  });
}

TEST_P(PassTagJobTest, KeepsTheBucketsOfAnotherPassFromStarting) {
  run_ranks(GetParam(), [&](int64_t rank, const Group& group) {
    const auto engine = engine::Engine::for_group(group);
    const bool is_odd = rank == GetParam() - 1;
    const auto equal = engine->submit(std::make_shared<PassTagJob>(tag_of(1, is_odd ? 2 : 1), rank, GetParam()));
    const auto bucket = std::make_shared<StartedJob>();
    const auto sent = engine->submit(bucket);
    EXPECT_THROW(equal->waitAndThrow(), c10::ValueError);
    EXPECT_THAT(error_message<c10::DistBackendError>([&] { sent->waitAndThrow(); }),
                AllOf(HasSubstr("a bucket was cancelled"), HasSubstr("rank 0 has backward pass 1 of model 1, rank ")));
    EXPECT_FALSE(bucket->started);
    wait_for_ranks(group);
  });
}

TEST_P(PassTagJobTest, KeepsTheEngineWhereAllRanksRefuse) {
  run_ranks(GetParam(), [&](int64_t rank, const Group& group) {
    const auto engine = engine::Engine::for_group(group);
    const auto refused = std::make_shared<PassTagJob>(tag_of(1, 1, c10::str("rank ", rank)), rank, GetParam());
    engine->submit(refused)->waitAndThrow();
    EXPECT_EQ(error_message<c10::ValueError>([&] { refused->check(); }),
              "backward pass 1 of model 1 on rank 0: rank 0");
    engine->submit(std::make_shared<PassTagJob>(tag_of(1, 2), rank, GetParam()))->waitAndThrow();
  });
}

TEST_P(PassTagJobTest, FailsWhereOneRankRefuses) {
  run_ranks(GetParam(), [&](int64_t rank, const Group& group) {
    const auto engine = engine::Engine::for_group(group);
    const bool is_odd = rank == GetParam() - 1;
    const auto job = std::make_shared<PassTagJob>(tag_of(1, 1, is_odd ? "too tired" : ""), rank, GetParam());
    EXPECT_EQ(error_message<c10::ValueError>([&] { engine->submit(job)->waitAndThrow(); }),
              c10::str("backward pass 1 of model 1 on rank ", GetParam() - 1, ": too tired"));
    wait_for_ranks(group);
  });
}

// One rank calls an operator while the others are in a backward pass: both sides get the error at once.
TEST_P(PassTagJobTest, IsToldFromAnOperatorsCall) {
  run_ranks(GetParam(), [&](int64_t rank, const Group& group) {
    const auto call = [&] {
      if (rank == GetParam() - 1) {
        quantized_all_reduce_(at::ones({10}), WireFormat::kInt8B128, group);
      } else {
        const auto job = std::make_shared<PassTagJob>(tag_of(1, 1), rank, GetParam());
        engine::Engine::for_group(group)->submit(job)->waitAndThrow();
      }
    };
    EXPECT_EQ(error_message<c10::ValueError>(call),
              c10::str("call differs between ranks: rank 0 has backward pass 1 of model 1, rank ", GetParam() - 1,
                       " has quantized_all_reduce; all ranks must make the same calls in the same order"));
    wait_for_ranks(group);
  });
}

// Models of a group are created and destroyed.
TEST_P(PassTagJobTest, BucketsAreComparedWhereTwoModelsSendThem) {
  run_ranks(GetParam(), [&](int64_t rank, const Group& group) {
    const PassTags one(group);
    EXPECT_FALSE(one.has_company());
    one.begin_buckets();
    EXPECT_FALSE(one.compare_bucket(1, 0));
    {
      const PassTags two(group);
      EXPECT_TRUE(one.has_company());
      EXPECT_FALSE(two.compare_bucket(1, 0)) << "it does not send any";
      two.begin_buckets();
      one.compare_bucket(1, 1)->waitAndThrow();
      two.compare_bucket(4, 0)->waitAndThrow();
      one.end_buckets();
      EXPECT_FALSE(two.compare_bucket(4, 1));
      one.begin_buckets();
    }
    EXPECT_FALSE(one.compare_bucket(2, 0));
    EXPECT_FALSE(one.has_company());
    const PassTags two(group);
    two.begin_buckets();
    const bool is_odd = rank == GetParam() - 1;
    EXPECT_THAT(error_message<c10::ValueError>(
                    [&] { (is_odd ? one.compare_bucket(2, 5) : two.compare_bucket(1, 0))->waitAndThrow(); }),
                HasSubstr(c10::str("rank 0 has bucket 1 of backward pass 1 of model 3, rank ", GetParam() - 1,
                                   " has bucket 6 of backward pass 2 of model 1")));
    wait_for_ranks(group);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, PassTagJobTest, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace narrowcast::collectives
