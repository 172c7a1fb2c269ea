#include "hooks/quantized/quantize_per_channel.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "hooks/quantized/gathered_mean_hook.h"
#include "hooks/stream/tensor_codecs.h"
#include "ops/cpu/affine_uint8_kernels.h"

namespace narrowcast::hooks {
namespace {

using cpu::AffineQparams;

// The reference pads the last row with zeros. They need no room in the message:
// the range of every row includes zero anyway, and their own mean is cut off.
constexpr int64_t kRow = 512;
static_assert(kPieceMultiple % kRow == 0, "Rows would be cut.");
constexpr int64_t kRowGrain = kParallelGrain / kRow;
constexpr auto kQparamsBytes = static_cast<int64_t>(sizeof(AffineQparams));

int64_t rows_of(const Piece& piece) { return (piece.numel + kRow - 1) / kRow; }
int64_t row_numel(const Piece& piece, int64_t row) { return std::min(kRow, piece.numel - row * kRow); }

template <class T>
void encode_rows(const Piece& piece, const T* x, uint8_t* message) {
  uint8_t* const codes = message + rows_of(piece) * kQparamsBytes;
  at::parallel_for(0, rows_of(piece), kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const AffineQparams qparams =
          cpu::choose_qparams_and_quantize(x + row * kRow, row_numel(piece, row), codes + row * kRow);
      std::memcpy(message + row * kQparamsBytes, &qparams, kQparamsBytes);
    }
  });
}

template <class T>
void decode_rows(const Piece& piece, const std::vector<const uint8_t*>& messages, T* mean) {
  const size_t ranks = messages.size();
  at::parallel_for(0, rows_of(piece), kRowGrain, [&](int64_t begin, int64_t end) {
    std::vector<const uint8_t*> codes(ranks);
    std::vector<AffineQparams> qparams(ranks);
    for (int64_t row = begin; row < end; ++row) {
      for (size_t rank = 0; rank < ranks; ++rank) {
        std::memcpy(&qparams[rank], messages[rank] + row * kQparamsBytes, kQparamsBytes);
        codes[rank] = messages[rank] + rows_of(piece) * kQparamsBytes + row * kRow;
      }
      cpu::dequantize_mean(codes.data(), qparams.data(), static_cast<int64_t>(ranks), row_numel(piece, row),
                           mean + row * kRow);
    }
  });
}

// Message: the AffineQparams of the piece's rows, then a code per element.
class PerChannelCodec final : public BucketCodec {
 public:
  int64_t message_bytes(const Piece& piece) const override { return rows_of(piece) * kQparamsBytes + piece.numel; }

  void begin(const at::Tensor& /*bucket*/) override {}

  void encode(const Piece& piece, const at::Tensor& bucket, uint8_t* message) override {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, bucket.scalar_type(), "quantize_per_channel", [&] {
      encode_rows(piece, bucket.const_data_ptr<scalar_t>() + piece.begin, message);
    });
  }

  void decode_mean(const Piece& piece, const std::vector<const uint8_t*>& messages, const at::Tensor& bucket) override {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, bucket.scalar_type(), "quantize_per_channel", [&] {
      decode_rows(piece, messages, bucket.mutable_data_ptr<scalar_t>() + piece.begin);
    });
  }
};

}  // namespace

std::unique_ptr<CommHook> make_quantize_per_channel_hook(const HookOptions& options) {
  return std::make_unique<GatheredMeanHook>(
      options,
      GatheredMeanHook::Format{"quantize_per_channel",
                               []() -> std::unique_ptr<BucketCodec> { return std::make_unique<PerChannelCodec>(); },
                               per_channel_codec()});
}

}  // namespace narrowcast::hooks
