#include "hooks/quantize_per_tensor.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <cstring>

#include "hooks/gathered_mean_hook.h"
#include "hooks/tensor_codecs.h"
#include "ops/cpu/affine_uint8_kernels.h"

namespace narrowcast::hooks {
namespace {

using cpu::AffineQparams;

template <class T>
AffineQparams choose_qparams(const T* x, int64_t n) {
  return codec::choose_qparams(at::parallel_reduce(
      0, n, kParallelGrain, cpu::AffineRange{},
      [x](int64_t begin, int64_t end, cpu::AffineRange range) {
        return codec::merge(range, cpu::find_range(x + begin, end - begin));
      },
      codec::merge));
}

// Message of piece 0: the bucket's AffineQparams, then a code per element. Of the
// others: a code per element.
class PerTensorCodec final : public BucketCodec {
 public:
  int64_t message_bytes(const Piece& piece) const override { return header_bytes(piece) + piece.numel; }

  void begin(const at::Tensor& bucket) override {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, bucket.scalar_type(), "quantize_per_tensor", [&] {
      own_qparams_ = choose_qparams(bucket.const_data_ptr<scalar_t>(), bucket.numel());
    });
  }

  void encode(const Piece& piece, const at::Tensor& bucket, uint8_t* message) override {
    std::memcpy(message, &own_qparams_, header_bytes(piece));
    uint8_t* const codes = message + header_bytes(piece);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, bucket.scalar_type(), "quantize_per_tensor", [&] {
      const scalar_t* const x = bucket.const_data_ptr<scalar_t>() + piece.begin;
      at::parallel_for(0, piece.numel, kParallelGrain, [&](int64_t begin, int64_t end) {
        cpu::quantize(x + begin, end - begin, own_qparams_, codes + begin);
      });
    });
  }

  void decode_mean(const Piece& piece, const std::vector<const uint8_t*>& messages, const at::Tensor& bucket) override {
    if (piece.index == 0) read_headers(messages);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, bucket.scalar_type(), "quantize_per_tensor", [&] {
      scalar_t* const mean = bucket.mutable_data_ptr<scalar_t>() + piece.begin;
      at::parallel_for(0, piece.numel, kParallelGrain, [&](int64_t begin, int64_t end) {
        std::vector<const uint8_t*> codes(messages);
        for (const uint8_t*& rank_codes : codes) rank_codes += header_bytes(piece) + begin;
        cpu::dequantize_mean(codes.data(), qparams_.data(), static_cast<int64_t>(codes.size()), end - begin,
                             mean + begin);
      });
    });
  }

 private:
  static int64_t header_bytes(const Piece& piece) {
    return piece.index == 0 ? static_cast<int64_t>(sizeof(AffineQparams)) : 0;
  }

  void read_headers(const std::vector<const uint8_t*>& messages) {
    qparams_.resize(messages.size());
    for (size_t rank = 0; rank < messages.size(); ++rank) {
      std::memcpy(&qparams_[rank], messages[rank], sizeof(AffineQparams));
    }
  }

  AffineQparams own_qparams_;
  std::vector<AffineQparams> qparams_;  // By rank.
};

}  // namespace

std::unique_ptr<CommHook> make_quantize_per_tensor_hook(const HookOptions& options) {
  return std::make_unique<GatheredMeanHook>(
      options,
      GatheredMeanHook::Format{"quantize_per_tensor",
                               []() -> std::unique_ptr<BucketCodec> { return std::make_unique<PerTensorCodec>(); },
                               per_tensor_codec()});
}

}  // namespace narrowcast::hooks
