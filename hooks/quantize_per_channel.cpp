#include "hooks/quantize_per_channel.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "hooks/gathered_mean_hook.h"
#include "hooks/tensor_codecs.h"
#include "ops/cpu/affine_uint8_kernels.h"

namespace narrowcast::hooks {
namespace {

using cpu::AffineQparams;

constexpr auto kQparamsBytes = static_cast<int64_t>(sizeof(AffineQparams));

// A piece in rows of `size` elements, its last one maybe shorter. The reference
// pads that with zeros. They need no room in the message: the range of every row
// includes zero anyway, and their own mean is cut off.
struct Rows {
  const Piece& piece;
  int64_t size;

  int64_t count() const { return (piece.numel - 1) / size + 1; }
  int64_t numel(int64_t row) const { return std::min(size, piece.numel - row * size); }
  int64_t grain() const { return std::max<int64_t>(1, kParallelGrain / size); }
};

template <class T>
void encode_rows(const Rows& rows, const T* x, uint8_t* message) {
  uint8_t* const codes = message + rows.count() * kQparamsBytes;
  at::parallel_for(0, rows.count(), rows.grain(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * rows.size;
      const AffineQparams qparams = cpu::choose_qparams_and_quantize(x + first, rows.numel(row), codes + first);
      std::memcpy(message + row * kQparamsBytes, &qparams, kQparamsBytes);
    }
  });
}

template <class T>
void decode_rows(const Rows& rows, const std::vector<const uint8_t*>& messages, T* mean) {
  const size_t ranks = messages.size();
  at::parallel_for(0, rows.count(), rows.grain(), [&](int64_t begin, int64_t end) {
    std::vector<const uint8_t*> codes(ranks);
    std::vector<AffineQparams> qparams(ranks);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * rows.size;
      for (size_t rank = 0; rank < ranks; ++rank) {
        std::memcpy(&qparams[rank], messages[rank] + row * kQparamsBytes, kQparamsBytes);
        codes[rank] = messages[rank] + rows.count() * kQparamsBytes + first;
      }
      cpu::dequantize_mean(codes.data(), qparams.data(), static_cast<int64_t>(ranks), rows.numel(row), mean + first);
    }
  });
}

// Message: the AffineQparams of the piece's rows, then a code per element.
class PerChannelCodec final : public BucketCodec {
 public:
  explicit PerChannelCodec(int64_t channel_size) : channel_size_(channel_size) {}

  int64_t piece_multiple() const override { return channel_size_; }

  int64_t message_bytes(const Piece& piece) const override {
    return rows_of(piece).count() * kQparamsBytes + piece.numel;
  }

  void begin(const at::Tensor& /*bucket*/) override {}

  void encode(const Piece& piece, const at::Tensor& bucket, uint8_t* message) override {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, bucket.scalar_type(), "quantize_per_channel", [&] {
      encode_rows(rows_of(piece), bucket.const_data_ptr<scalar_t>() + piece.begin, message);
    });
  }

  void decode_mean(const Piece& piece, const std::vector<const uint8_t*>& messages, const at::Tensor& bucket) override {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, bucket.scalar_type(), "quantize_per_channel", [&] {
      decode_rows(rows_of(piece), messages, bucket.mutable_data_ptr<scalar_t>() + piece.begin);
    });
  }

 private:
  Rows rows_of(const Piece& piece) const { return {piece, channel_size_}; }

  const int64_t channel_size_;
};

}  // namespace

std::unique_ptr<CommHook> make_quantize_per_channel_hook(const HookOptions& options) {
  const int64_t channel_size = options.channel_size.value_or(kDefaultChannelSize);
  return std::make_unique<GatheredMeanHook>(
      options, GatheredMeanHook::Format{
                   "quantize_per_channel",
                   [=]() -> std::unique_ptr<BucketCodec> { return std::make_unique<PerChannelCodec>(channel_size); },
                   per_channel_codec(channel_size)});
}

}  // namespace narrowcast::hooks
