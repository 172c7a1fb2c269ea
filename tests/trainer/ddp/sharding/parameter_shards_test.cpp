#include "trainer/ddp/sharding/parameter_shards.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::sharding {
namespace {

using ::testing::ElementsAre;
using testing::error_message;
using ::testing::HasSubstr;
using testing::run_ranks;

// [200] and [3, 5].
ShardRequest make_request() {
  return {.parameters = {at::zeros({200}).requires_grad_(), at::zeros({3, 5}).requires_grad_()}, .groups = {0, 1}};
}

TEST(ParameterShards, OwnPiecesAreSteppedAndExchanged) {
  run_ranks(2, [](int64_t rank, const auto& group) {
    const ShardRequest request = make_request();
    ParameterShards shards(group, [&] { return request; });
    EXPECT_THAT(shards.ranks(), ElementsAre(0, 1));
    EXPECT_THAT(shards.shards(),
                ElementsAre(ElementsAre(Piece{0, 0, 64}), ElementsAre(Piece{0, 64, 136}, Piece{1, 0, 15})));
    const std::vector<at::Tensor> own = shards.own_pieces();
    ASSERT_EQ(own.size(), rank == 0 ? 1 : 2);
    if (rank == 1) {
      EXPECT_EQ(own[1].sizes(), request.parameters[1].sizes()) << "a whole parameter keeps its shape";
    }
    const auto version = request.parameters[0]._version();
    for (const at::Tensor& piece : own) piece.fill_(static_cast<double>(rank + 1));
    shards.exchange();
    EXPECT_GT(request.parameters[0]._version(), version + 1 - rank) << "also where no own operator has changed it";
    EXPECT_TRUE(at::equal(request.parameters[0], at::cat({at::full({64}, 1.), at::full({136}, 2.)})));
    EXPECT_TRUE(at::equal(request.parameters[1], at::full({3, 5}, 2.)));
  });
}

// A number for each element: masters keep theirs when they go to other shards.
at::Tensor numbers_of(const Piece& piece) {
  return at::arange(piece.begin, piece.begin + piece.numel, at::kFloat) + 1000 * static_cast<double>(piece.parameter);
}

TEST(ParameterShards, OverAllRanksFollowBuckets) {
  run_ranks(3, [](int64_t rank, const auto& group) {
    ShardRequest request = make_request();
    std::vector<std::optional<hooks::ShardRounding>> roundings;
    request.hook = ShardingHook{"fake", {.levels = Levels::kOne}, [&](std::optional<hooks::ShardRounding> rounding) {
                                  roundings.push_back(rounding);
                                  return std::vector<int64_t>{0, 1, 2};
                                }};
    const auto [a, b] = std::pair(request.parameters[0], request.parameters[1]);
    {
      ParameterShards shards(group, [&] { return request; });
      EXPECT_THAT(roundings, ElementsAre(hooks::ShardRounding::kOnce));
      EXPECT_THAT(shards.ranks(), ElementsAre(0, 1, 2));
      {
        const at::NoGradGuard no_grad;
        a.fill_(7);
      }
      const auto expect_numbers = [&](const char* when) {
        const std::vector<at::Tensor> pieces = shards.own_pieces();
        ASSERT_EQ(pieces.size(), shards.shards()[rank].size());
        for (size_t i = 0; i < pieces.size(); ++i) {
          EXPECT_TRUE(at::equal(pieces[i].flatten(), numbers_of(shards.shards()[rank][i]))) << when << i;
        }
      };
      EXPECT_FALSE(shards.follow({{a, b}}));
      const std::vector<at::Tensor> pieces = shards.own_pieces();
      for (size_t i = 0; i < pieces.size(); ++i) {
        const Piece& piece = shards.shards()[rank][i];
        EXPECT_TRUE(pieces[i].eq(piece.parameter == 0 ? 7 : 0).all().template item<bool>()) << "the first masters";
        pieces[i].copy_(numbers_of(piece).view(pieces[i].sizes()));
      }
      const std::vector<Shard> before = shards.shards();
      EXPECT_TRUE(shards.follow({{b}, {a}}));
      EXPECT_NE(shards.shards(), before);
      expect_numbers("after they moved ");
      shards.exchange();
      // The largest difference is 1014, and a code is off by half a step of 1.008 / 127 of that.
      EXPECT_LT((a - numbers_of({0, 0, 200})).abs().max().template item<double>(), 4.1);
      EXPECT_FALSE(shards.follow({{b}, {a}}));
      expect_numbers("in the next step ");
      EXPECT_THAT(error_message<c10::ValueError>([&] { shards.follow({{b}}); }),
                  HasSubstr("parameter 0 of the optimizer, of sizes [200], is none of those"));
    }
    EXPECT_THAT(roundings, ElementsAre(hooks::ShardRounding::kOnce, std::nullopt)) << "at its end";
  });
}

// Also on ranks whose node has another number of ranks.
TEST(ParameterShards, TensorsAreGathered) {
  run_ranks(3, [](int64_t rank, const auto& group) {
    ShardRequest request = make_request();
    request.options.node_size(2);
    ParameterShards shards(group, [&] { return request; });
    if (rank == 2) return shards.gather({at::ones({7})}, {7}, 9, {{}});
    const std::vector<at::Tensor> wanted = {at::zeros({4}), at::zeros({5})};
    shards.gather(rank == 0 ? std::vector<at::Tensor>{} : std::vector<at::Tensor>{at::arange(9.)}, {0, 9}, 9,
                  {{}, rank == 0 ? wanted : std::vector<at::Tensor>{}});
    EXPECT_TRUE(at::equal(at::cat(wanted), rank == 0 ? at::arange(9.) : at::zeros({9})));
  });
}

TEST(ParameterShards, WrongTensorsOfAGatherAreRefused) {
  run_ranks(2, [](int64_t rank, const auto& group) {
    ParameterShards shards(group, make_request);
    const auto refusal = [&](const std::vector<at::Tensor>& own, const std::vector<int64_t>& numels) {
      return error_message<c10::ValueError>([&] { shards.gather(own, numels, 9, {{}, {}}); });
    };
    EXPECT_THAT(refusal({at::ones({3}, at::kDouble)}, {3, 3}),
                HasSubstr("must be float32 [n] on the CPU, but is CPUDouble"));
    EXPECT_THAT(refusal({at::ones({6}).slice(0, 0, 6, 2)}, {3, 3}), HasSubstr("must be float32 [n]"));
    EXPECT_THAT(refusal({at::ones({4})}, {3, 3}), HasSubstr("tensors of a gather have 4 elements, but must have 3"));
    EXPECT_THAT(refusal({}, {0, 10}), HasSubstr("a rank gives 10 elements to a gather of at most 9"));
    EXPECT_THAT(refusal({}, {0}), HasSubstr("a gather of 2 ranks has 1 numbers and 2 lists"));
    shards.gather({}, {0, 0}, 0, {{}, {}});
    EXPECT_EQ(shards.own_pieces().size(), static_cast<size_t>(rank + 1));
  });
}

}  // namespace
}  // namespace narrowcast::sharding
