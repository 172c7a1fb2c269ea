#include "trainer/ddp/shards/shards.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

namespace narrowcast::sharding {
namespace {

using Numels = std::vector<int64_t>;

int64_t sum_of(const Numels& numels) { return std::accumulate(numels.begin(), numels.end(), int64_t{0}); }

// The pieces of all shards of each parameter, in order.
std::vector<std::vector<Piece>> by_parameter(const std::vector<Shard>& shards, size_t parameters) {
  std::vector<std::vector<Piece>> pieces(parameters);
  for (const Shard& shard : shards) {
    for (const Piece& piece : shard) {
      pieces.at(piece.parameter).push_back(piece);
    }
  }
  return pieces;
}

const std::vector<Numels>& lists() {
  static const std::vector<Numels> lists = {{1},    {64},     {1000},       {63, 1, 65},          {0, 100, 0, 5, 300},
                                            {3, 3}, {10'000}, {640, 64, 1}, {7, 100'003, 12, 511}};
  return lists;
}

TEST(Shards, PiecesCoverEachParameterOnceAndAreCutAtGrains) {
  for (const Numels& numels : lists()) {
    for (int64_t count = 1; count <= 9; ++count) {
      const std::vector<Shard> shards = cut_pieces(numels, count);
      ASSERT_EQ(std::ssize(shards), count);
      const auto pieces = by_parameter(shards, numels.size());
      for (size_t parameter = 0; parameter < numels.size(); ++parameter) {
        int64_t begin = 0;
        for (const Piece& piece : pieces[parameter]) {
          EXPECT_EQ(piece.begin, begin);
          EXPECT_EQ(piece.begin % kShardGrain, 0);
          EXPECT_TRUE(piece.numel > 0 || (numels[parameter] == 0 && pieces[parameter].size() == 1));
          begin += piece.numel;
        }
        EXPECT_EQ(begin, numels[parameter]);
        EXPECT_FALSE(pieces[parameter].empty());
      }
    }
  }
}

// Each of a shard's two borders moves down by less than a grain from where equal parts would have it.
TEST(Shards, PiecesAreNearlyEqual) {
  for (const Numels& numels : lists()) {
    for (int64_t count = 1; count <= 9; ++count) {
      for (const Shard& shard : cut_pieces(numels, count)) {
        EXPECT_LE(std::abs(elements_of(shard) - sum_of(numels) / count), kShardGrain);
      }
    }
  }
}

// A shard is never the smallest once it exceeds another by a parameter.
TEST(Shards, WholeParametersLieInOneShardEachAndDifferByAtMostOneParameter) {
  for (const Numels& numels : lists()) {
    for (int64_t count = 1; count <= 9; ++count) {
      const std::vector<Shard> shards = cut_whole(numels, count);
      const auto pieces = by_parameter(shards, numels.size());
      for (size_t parameter = 0; parameter < numels.size(); ++parameter) {
        ASSERT_EQ(pieces[parameter].size(), 1U);
        EXPECT_EQ(pieces[parameter][0], (Piece{parameter, 0, numels[parameter]}));
      }
      const auto [least, most] = std::ranges::minmax(shards, {}, elements_of);
      EXPECT_LE(elements_of(most) - elements_of(least), std::ranges::max(numels));
    }
  }
}

// With costs, whole parameters are divided by them, not by their elements. One without elements stays in shard 0.
TEST(Shards, WholeParametersHaveEqualCosts) {
  const std::vector<Shard> shards = cut_whole({10, 10, 10, 40, 0}, 2, {60, 20, 20, 20, 5});
  EXPECT_EQ(shards[0], (Shard{{0, 0, 10}, {4, 0, 0}}));
  EXPECT_EQ(shards[1], (Shard{{1, 0, 10}, {2, 0, 10}, {3, 0, 40}}));
}

TEST(Shards, ThePieceOfAParameterIsInItsOrderOfMemory) {
  const at::Tensor transposed = at::arange(12, at::kFloat).view({3, 4}).t();
  EXPECT_TRUE(at::equal(memory_of(transposed, {0, 2, 5}), at::arange(2, 7, at::kFloat)));
  memory_of(transposed, {0, 11, 1}).fill_(-1);
  EXPECT_EQ((transposed[3][2].item<float>()), -1);
}

TEST(Elements, CopiesAnyRange) {
  const at::Tensor all = at::arange(10, at::kFloat);
  const Elements elements({all.narrow(0, 0, 3), all.narrow(0, 3, 0), all.narrow(0, 3, 6), all.narrow(0, 9, 1)});
  for (int64_t begin = 0; begin <= 10; ++begin) {
    for (int64_t numel = 0; begin + numel <= 10; ++numel) {
      at::Tensor to = at::full({10}, -1, at::kFloat);
      elements.copy_to(to.mutable_data_ptr<float>(), begin, numel);
      EXPECT_TRUE(at::equal(to.narrow(0, 0, numel), all.narrow(0, begin, numel)));
      EXPECT_TRUE(to.narrow(0, numel, 10 - numel).eq(-1).all().item<bool>());
      std::vector<at::Tensor> target = {at::zeros({4}), at::zeros({6})};
      Elements(target).copy_from(to.const_data_ptr<float>(), begin, numel);
      const at::Tensor copied = at::cat(target);
      EXPECT_TRUE(at::equal(copied.narrow(0, begin, numel), all.narrow(0, begin, numel)));
      EXPECT_EQ(copied.count_nonzero().item<int64_t>(), numel - (begin == 0 && numel > 0 ? 1 : 0));
    }
  }
}

// Pages are released only if all of them was to be.
TEST(Elements, GiveBackTheirPages) {
  constexpr int64_t kNumel = int64_t{1} << 17;
  constexpr int64_t kMostOfPages = 2 * (int64_t{1} << 14);  // Elements in the first and last page, of up to 64 KiB.
  const at::Tensor all = at::full({kNumel}, 1.F);
  Elements elements;
  elements.add_gap(1000);
  elements.add(all.narrow(0, 0, kNumel - 3));
  elements.release(1000, 0);
  elements.release(0, 1001);
  EXPECT_EQ(all.count_nonzero().item<int64_t>(), kNumel);
  elements.release(1000 + 10, kNumel - 20);
  EXPECT_LE(all.count_nonzero().item<int64_t>(), kMostOfPages);
  EXPECT_TRUE(all.narrow(0, 0, 10).eq(1).all().item<bool>());
  EXPECT_TRUE(all.narrow(0, kNumel - 10, 10).eq(1).all().item<bool>());
}

TEST(Elements, LieInOtherPiecesWithGaps) {
  const std::vector<at::Tensor> memory = {at::zeros({4}), at::zeros({5})};
  const Shard others = {{1, 6, 4}, {0, 10, 5}};  // Parameter 1 from 6 to 10, parameter 0 from 10 to 15.
  const Elements elements = elements_in({{0, 8, 4}, {2, 0, 3}, {1, 0, 9}}, others, memory);
  EXPECT_EQ(elements.numel(), 16);
  copy_elements(Elements({at::arange(1, 17, at::kFloat)}), elements);
  EXPECT_TRUE(at::equal(memory[1], at::tensor({3.F, 4.F, 0.F, 0.F, 0.F})));
  EXPECT_TRUE(at::equal(memory[0], at::tensor({14.F, 15.F, 16.F, 0.F})));
  const at::Tensor back = at::full({16}, -1.F);
  copy_elements(elements, Elements({back}));
  EXPECT_TRUE(at::equal(back.ge(0), at::tensor({0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1}).to(at::kBool)));
}

TEST(Elements, AddAndSubtractARange) {
  const std::vector<at::Tensor> values = {at::full({2}, 5.F), at::full({3}, 7.F)};
  Elements elements(values);
  elements.add_gap(2);
  const at::Tensor numbers = at::arange(1, 5, at::kFloat);
  elements.add_from(numbers.const_data_ptr<float>(), 1, 4);
  EXPECT_TRUE(at::equal(at::cat(values), at::tensor({5.F, 6.F, 9.F, 10.F, 11.F})));
  at::Tensor minuend = at::full({3}, 20.F);
  elements.subtract_from(minuend.mutable_data_ptr<float>(), 4, 3);
  EXPECT_TRUE(at::equal(minuend, at::tensor({9.F, 20.F, 20.F})));
}

// Every element of every listed parameter is in one shard, in the bucket's order.
TEST(Shards, OfBucketsAreTheElementsWhoseMeansRanksGet) {
  const std::vector<at::Tensor> parameters = {at::zeros({40, 50}), at::zeros({7}), at::zeros({3000}), at::zeros({5}),
                                              at::zeros({0, 2})};
  const std::vector<std::vector<at::Tensor>> buckets = {{parameters[2], parameters[4], parameters[1]},
                                                        {parameters[3], parameters[0]}};
  std::unordered_map<const at::TensorImpl*, size_t> indices;
  for (const size_t i : {0, 1, 2, 4}) indices.emplace(parameters[i].unsafeGetTensorImpl(), i);
  for (const auto& [world_size, node_size] : {std::pair<int64_t, int64_t>{1, 1}, {3, 1}, {4, 2}, {4, 3}, {8, 8}}) {
    const auto layout = node::NodeLayout::of_size(world_size, node_size);
    std::vector<at::Tensor> counts;
    for (const at::Tensor& parameter : parameters) counts.push_back(at::zeros({parameter.numel()}));
    const std::vector<Shard> shards = cut_buckets(buckets, indices, layout);
    EXPECT_EQ(std::ssize(shards), world_size);
    for (int64_t rank = 0; rank < world_size; ++rank) {
      for (const Piece& piece : shards[rank]) counts[piece.parameter].narrow(0, piece.begin, piece.numel).add_(1);
      EXPECT_EQ(std::ranges::all_of(shards[rank], [](const Piece& piece) { return piece.numel == 0; }),
                layout.local_rank_of(rank) >= layout.segments() || elements_of(shards[rank]) == 0);
      EXPECT_EQ(std::ranges::count(shards[rank], Piece{4, 0, 0}), rank == 0 ? 1 : 0) << "without elements";
    }
    for (const size_t i : {0, 1, 2}) EXPECT_TRUE(counts[i].eq(1).all().item<bool>()) << "parameter " << i;
    EXPECT_EQ(counts[3].sum().item<double>(), 0) << "not in the list";
  }
}

}  // namespace
}  // namespace narrowcast::sharding
