#include "ops/collectives/all_reduce/codec/sparse_codec.h"

#include <algorithm>
#include <cstdint>

#include "ops/codec/sparse_top.h"
#include "ops/collectives/all_reduce/codec/sent_residuals.h"
#include "ops/cpu/sparse/sparse_kernels.h"
#include "ops/operators/meta.h"

namespace narrowcast::collectives {
namespace {

using codec::wire::Rounding;
using cpu::SparseTile;

// Elements of the slice from `first` on.
template <class T>
T* elements_of(const ArraySlice& slice, int64_t first) {
  return static_cast<T*>(slice.array.mutable_data_ptr()) + slice.range.begin + first;
}

// Every block is encoded, decoded and averaged by itself, as float32 in the L1 cache.
class SparseCodec final : public WireCodec {
 public:
  explicit SparseCodec(WireFormat format) : WireCodec(format), per_mille_(codec::wire::kept_per_mille(format)) {}

  void encode(const Rounding& /*rounding*/, const ArraySlice& slice, uint8_t* message) const override {
    meta::visit_float(slice.array.scalar_type(), [&](auto zero) {
      for_blocks(slice, [&](int64_t first, int64_t n, int64_t byte) {
        SparseTile sent;
        load<decltype(zero)>(slice, first, n, sent);
        add(from(slice.residual, first), n, sent.data());
        encode_block(sent, n, {.kept = from(slice.residual, first)}, message + byte);
      });
    });
  }

  void decode(const uint8_t* message, const ArraySlice& slice) const override {
    store_blocks(slice, [&](int64_t /*first*/, int64_t n, int64_t byte, SparseTile& tile) {
      codec::wire::decode_sparse_block(per_mille_, message + byte, n, tile.data());
    });
  }

  void reduce(const RankMessages& messages, const ArraySlice& slice, Reduction reduction) const override {
    store_blocks(slice, [&](int64_t first, int64_t n, int64_t byte, SparseTile& mean) {
      load_own(messages, slice, first, n, mean);
      average_block(messages, mean, n, byte, reduction);
    });
  }

  void average_and_encode(const Rounding& /*rounding*/, const RankMessages& messages, const ArraySlice& slice,
                          float* mean_residual, uint8_t* message) const override {
    const SentResiduals residuals{mean_residual, slice.residual};
    for_blocks(slice, [&](int64_t first, int64_t n, int64_t byte) {
      SparseTile mean;
      load_own(messages, slice, first, n, mean);
      add(from(slice.residual, first), n, mean.data());
      average_block(messages, mean, n, byte, Reduction::kMean);
      add(from(mean_residual, first), n, mean.data());
      encode_block(mean, n, residuals.at(first), message + byte);
    });
  }

 private:
  template <class Body>
  void for_blocks(const ArraySlice& slice, const Body& body) const {
    cpu::for_sparse_parts(per_mille_, slice.range.numel, body);
  }

  template <class T>
  static void load(const ArraySlice& slice, int64_t first, int64_t n, SparseTile& tile) {
    std::transform(elements_of<const T>(slice, first), elements_of<const T>(slice, first + n), tile.begin(),
                   [](T x) { return static_cast<float>(x); });
  }

  // This rank's own part, if it is not a message.
  static void load_own(const RankMessages& messages, const ArraySlice& slice, int64_t first, int64_t n,
                       SparseTile& tile) {
    if (std::find(messages.begin(), messages.end(), nullptr) == messages.end()) {
      return;
    }
    meta::visit_float(slice.array.scalar_type(), [&](auto zero) { load<decltype(zero)>(slice, first, n, tile); });
  }

  // Replaces the own part in `tile` by the mean or sum.
  void average_block(const RankMessages& messages, SparseTile& tile, int64_t n, int64_t byte,
                     Reduction reduction) const {
    const cpu::RankParts parts{messages.data(), std::ssize(messages), tile.data(), n, reduction};
    cpu::sparse_average_block(per_mille_, parts, byte, tile.data());
  }

  // Calls make(first element, elements, first byte, tile) for each block, and writes the tile to the slice.
  template <class Make>
  void store_blocks(const ArraySlice& slice, const Make& make) const {
    meta::visit_float(slice.array.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      for_blocks(slice, [&](int64_t first, int64_t n, int64_t byte) {
        SparseTile tile;
        make(first, n, byte, tile);
        std::transform(tile.begin(), tile.begin() + n, elements_of<T>(slice, first),
                       [](float x) { return static_cast<T>(x); });
      });
    });
  }

  // Encodes a block, then updates its residuals.
  void encode_block(const SparseTile& sent, int64_t n, const SentResiduals& residuals, uint8_t* bytes) const {
    cpu::sparse_encode_block(per_mille_, sent.data(), n, bytes);
    if (!residuals.are_none()) {
      SparseTile decoded;
      codec::wire::decode_sparse_block(per_mille_, bytes, n, decoded.data());
      residuals.update(sent.data(), n, decoded.data());
    }
  }

  const int per_mille_;
};

}  // namespace

std::unique_ptr<const WireCodec> make_sparse_codec(WireFormat format) { return std::make_unique<SparseCodec>(format); }

}  // namespace narrowcast::collectives
