#include "trainer/ddp/shards/copy_exchange.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast::sharding {
namespace {

using node::NodeLayout;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run_ranks;

TEST(CopyHolders, AreOnTheNextNode) {
  const auto flat = [](int64_t ranks) { return NodeLayout::flat(ranks); };
  const auto of_size = [](int64_t ranks, int64_t size) { return NodeLayout::of_size(ranks, size); };
  EXPECT_THAT(copy_holders(flat(2), flat(2)), ElementsAre(1, 0));
  EXPECT_THAT(copy_holders(flat(3), flat(3)), ElementsAre(1, 2, 0));
  EXPECT_THAT(copy_holders(of_size(6, 2), of_size(6, 2)), ElementsAre(2, 3, 4, 5, 0, 1));
  EXPECT_THAT(copy_holders(of_size(4, 3), of_size(4, 3)), ElementsAre(3, kNoCopy, kNoCopy, 0))
      << "only the first rank of each node owns a shard";
  EXPECT_THAT(copy_holders(of_size(4, 3), flat(4)), ElementsAre(3, 3, 3, 0)) << "all ranks own shards";
  EXPECT_THAT(copy_holders(of_size(5, 2), flat(5)), ElementsAre(2, 3, 4, 4, 0));
  EXPECT_THAT(testing::error_message<c10::ValueError>([&] { copy_holders(of_size(4, 4), flat(4)); }),
              HasSubstr("copies: 2 copies of each shard need two nodes, but all 4 ranks are on one"));
}

// The holders of three shards, of which that of rank 1 is empty and that of rank 0 needs two messages.
constexpr int64_t kLong = (int64_t{1} << 18) + 100;
const std::vector<int64_t> kSizes = {kLong, 0, 1000};

at::Tensor numbers_of(int64_t rank) { return testing::seeded_randn(static_cast<uint64_t>(7 + rank), {kSizes[rank]}); }

TEST(CopyExchange, GivesCopiesTheBitsOfTheirOwners) {
  for (const WireFormat format : {WireFormat::kFp32, WireFormat::kInt8B128}) {
    std::vector<at::Tensor> owned(3);
    std::vector<at::Tensor> copied(3);
    run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
      CopyExchange exchange(group, {1, 2, 1});
      EXPECT_EQ(exchange.owners().size(), rank == 1 ? 2 : rank == 2 ? 1 : 0);
      exchange.set_sizes(kSizes);
      owned[rank] = numbers_of(rank);
      std::vector<Elements> copies;
      for (const int64_t owner : exchange.owners()) {
        copied[owner] = at::full({kSizes[owner]}, -1.0F);
        copies.emplace_back(std::vector<at::Tensor>{copied[owner]});
      }
      EXPECT_FALSE(exchange.send("sending", format, Elements({owned[rank]}), copies, nullptr));
      const int64_t headers = rank == 0 ? 2 : rank == 2 ? 1 : 0;
      EXPECT_EQ(exchange.bytes_sent(), encoded_size(kSizes[rank], format) + 16 * headers);
    });
    for (const int64_t rank : {0, 2}) {
      EXPECT_TRUE(at::equal(copied[rank], owned[rank])) << "rank " << rank;
      EXPECT_EQ(at::equal(owned[rank], numbers_of(rank)), format == WireFormat::kFp32) << "rank " << rank;
      EXPECT_LT((owned[rank] - numbers_of(rank)).abs().max().item<double>(), 0.05) << "rank " << rank;
    }
  }
}

// Numbers that an owner lacks are zeros; those that the holder of the copy lacks are not written.
TEST(CopyExchange, SkipsGaps) {
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    CopyExchange exchange(group, {1, 0});
    exchange.set_sizes({20, 20});
    const at::Tensor first = at::ones({10});
    at::Tensor copy = at::full({15}, -1.0F);
    Elements own({first});
    own.add_gap(10);
    Elements to;
    to.add_gap(5);
    to.add(copy);
    EXPECT_FALSE(exchange.send("sending", WireFormat::kFp32, own, {to}, nullptr));
    EXPECT_TRUE(at::equal(copy, at::cat({at::ones({5}), at::zeros({10})}))) << "rank " << rank;
  });
}

TEST(CopyExchange, OnlyTheHolderOfTheCopyLearnsOfAFailure) {
  run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
    CopyExchange exchange(group, {1, 2, 0});
    exchange.set_sizes({100, 100, 100});
    at::Tensor own = at::ones({100});
    at::Tensor copy = at::zeros({100});
    const auto failure = rank == 1 ? std::make_exception_ptr(std::runtime_error("no gradient")) : nullptr;
    const std::exception_ptr result =
        exchange.send("sending", WireFormat::kFp32, Elements({own}), {Elements({copy})}, failure);
    if (rank == 0) {
      EXPECT_FALSE(result);
    } else if (rank == 1) {
      EXPECT_EQ(result, failure);
    } else {
      EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { std::rethrow_exception(result); }),
                  HasSubstr("rank 2: sending failed: rank 1 could not take part in it"));
    }
    EXPECT_EQ(copy.sum().item<double>(), rank == 0 ? 100 : 0);
  });
}

}  // namespace
}  // namespace narrowcast::sharding
