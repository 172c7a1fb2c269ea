#include "trainer/ddp/sharding/parameter_shards.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
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
