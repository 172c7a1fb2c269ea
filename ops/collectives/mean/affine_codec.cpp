#include "ops/collectives/mean/affine_codec.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <narrowcast/affine_uint8.h>
#include "ops/cpu/affine_uint8_kernels.h"
#include "ops/meta/meta.h"

namespace narrowcast::collectives {
namespace {

using cpu::AffineQparams;

constexpr auto kQparamsBytes = static_cast<int64_t>(sizeof(AffineQparams));

// From this many elements on, encoding and decoding are worth a second thread.
constexpr int64_t kParallelGrain = 65'536;

template <class T>
AffineQparams choose_array_qparams(const T* x, int64_t n) {
  return codec::choose_qparams(at::parallel_reduce(
      0, n, kParallelGrain, cpu::AffineRange{},
      [x](int64_t begin, int64_t end, cpu::AffineRange range) {
        return codec::merge(range, cpu::find_range(x + begin, end - begin));
      },
      codec::merge));
}

// Message of the first chunk: the array's AffineQparams, then a code per element. Of the others: a code per element.
class PerTensorCodec final : public MeanCodec {
 public:
  int64_t grain() const override { return 64; }  // Lines of the cache.

  int64_t message_bytes(const Segment& chunk) const override { return header_bytes(chunk) + chunk.numel; }

  void encode(const MeanCall& call, const Segment& chunk, const at::Tensor& message) override {
    auto* const header = message.mutable_data_ptr<uint8_t>();
    meta::visit_float(call.array.scalar_type(), [&](auto zero) {
      const auto* const array = call.array.const_data_ptr<decltype(zero)>();
      if (chunk.begin == 0) {
        own_qparams_ = choose_array_qparams(array, call.array.numel());
        std::memcpy(header, &own_qparams_, kQparamsBytes);
      }
      const auto* const x = array + chunk.begin;
      uint8_t* const codes = header + header_bytes(chunk);
      at::parallel_for(0, chunk.numel, kParallelGrain, [&](int64_t begin, int64_t end) {
        cpu::quantize(x + begin, end - begin, own_qparams_, codes + begin);
      });
    });
  }

  void average(const MeanCall& call, const Segment& chunk, const std::vector<at::Tensor>& messages) override {
    if (chunk.begin == 0) read_headers(messages);
    meta::visit_float(call.array.scalar_type(), [&](auto zero) {
      auto* const mean = call.array.mutable_data_ptr<decltype(zero)>() + chunk.begin;
      at::parallel_for(0, chunk.numel, kParallelGrain, [&](int64_t begin, int64_t end) {
        std::vector<const uint8_t*> codes;
        for (const at::Tensor& message : messages) {
          codes.push_back(message.const_data_ptr<uint8_t>() + header_bytes(chunk) + begin);
        }
        cpu::dequantize_mean(codes.data(), qparams_.data(), static_cast<int64_t>(codes.size()), end - begin,
                             mean + begin);
      });
    });
  }

 private:
  static int64_t header_bytes(const Segment& chunk) { return chunk.begin == 0 && chunk.numel > 0 ? kQparamsBytes : 0; }

  void read_headers(const std::vector<at::Tensor>& messages) {
    qparams_.resize(messages.size());
    for (size_t rank = 0; rank < messages.size(); ++rank) {
      std::memcpy(&qparams_[rank], messages[rank].const_data_ptr<uint8_t>(), kQparamsBytes);
    }
  }

  AffineQparams own_qparams_;
  std::vector<AffineQparams> qparams_;  // By rank.
};

// Asked for once: a channel may have a single element.
std::vector<const uint8_t*> bytes_of(const std::vector<at::Tensor>& messages) {
  std::vector<const uint8_t*> bytes;
  for (const at::Tensor& message : messages) {
    bytes.push_back(message.const_data_ptr<uint8_t>());
  }
  return bytes;
}

// A chunk of `chunk_numel` elements in channels of `size`, its last one maybe shorter. The reference pads that with
// zeros. They need no place in the message: the range of every channel includes zero anyway, and their own mean is cut
// off.
struct Channels {
  int64_t chunk_numel;
  int64_t size;

  int64_t count() const { return chunk_numel / size + (chunk_numel % size > 0 ? 1 : 0); }
  int64_t numel(int64_t channel) const { return std::min(size, chunk_numel - channel * size); }
  int64_t header_bytes() const { return count() * kQparamsBytes; }
  int64_t grain() const { return std::max<int64_t>(1, kParallelGrain / size); }
};

// Message: the AffineQparams of the chunk's channels, then a code per element.
class PerChannelCodec final : public MeanCodec {
 public:
  explicit PerChannelCodec(int64_t channel_size) : channel_size_(channel_size) {}

  int64_t grain() const override { return channel_size_; }

  int64_t message_bytes(const Segment& chunk) const override {
    return affine_message_bytes(chunk.numel, channel_size_);
  }

  void encode(const MeanCall& call, const Segment& chunk, const at::Tensor& message) override {
    const Channels channels{chunk.numel, channel_size_};
    auto* const header = message.mutable_data_ptr<uint8_t>();
    uint8_t* const codes = header + channels.header_bytes();
    meta::visit_float(call.array.scalar_type(), [&](auto zero) {
      const auto* const x = call.array.const_data_ptr<decltype(zero)>() + chunk.begin;
      at::parallel_for(0, channels.count(), channels.grain(), [&](int64_t begin, int64_t end) {
        for (int64_t channel = begin; channel < end; ++channel) {
          const int64_t first = channel * channels.size;
          const AffineQparams qparams =
              cpu::choose_qparams_and_quantize(x + first, channels.numel(channel), codes + first);
          std::memcpy(header + channel * kQparamsBytes, &qparams, kQparamsBytes);
        }
      });
    });
  }

  void average(const MeanCall& call, const Segment& chunk, const std::vector<at::Tensor>& messages) override {
    const Channels channels{chunk.numel, channel_size_};
    const int64_t header_bytes = channels.header_bytes();
    const std::vector<const uint8_t*> headers = bytes_of(messages);
    meta::visit_float(call.array.scalar_type(), [&](auto zero) {
      auto* const mean = call.array.mutable_data_ptr<decltype(zero)>() + chunk.begin;
      at::parallel_for(0, channels.count(), channels.grain(), [&](int64_t begin, int64_t end) {
        std::vector<const uint8_t*> codes(messages.size());
        std::vector<AffineQparams> qparams(messages.size());
        for (int64_t channel = begin; channel < end; ++channel) {
          const int64_t first = channel * channels.size;
          for (size_t rank = 0; rank < headers.size(); ++rank) {
            std::memcpy(&qparams[rank], headers[rank] + channel * kQparamsBytes, kQparamsBytes);
            codes[rank] = headers[rank] + header_bytes + first;
          }
          cpu::dequantize_mean(codes.data(), qparams.data(), static_cast<int64_t>(codes.size()),
                               channels.numel(channel), mean + first);
        }
      });
    });
  }

 private:
  const int64_t channel_size_;
};

// x [numel] -> [channels, channel_size], or [1, numel] if that is less.
at::Tensor in_channels(const at::Tensor& x, int64_t channel_size) {
  const int64_t size = std::min(channel_size, x.numel());
  const int64_t missing = (size - x.numel() % size) % size;
  return (missing == 0 ? x : at::constant_pad_nd(x, {0, missing})).view({-1, size});
}

// Message: a code per element, without those of the padding, then float32 [2, channels] of scales and zero points. So
// codes begin where the message does, which is aligned.
class OperatorsCodec final : public MeanCodec {
 public:
  explicit OperatorsCodec(std::optional<int64_t> channel_size) : channel_size_(channel_size) {}

  int64_t grain() const override { return channel_size_.value_or(1); }

  int64_t message_bytes(const Segment& chunk) const override { return qparams_bytes(chunk) + chunk.numel; }

  void encode(const MeanCall& call, const Segment& chunk, const at::Tensor& message) override {
    const at::Tensor x = call.array.narrow(0, chunk.begin, chunk.numel);
    const auto [qparams, codes] = channel_size_ ? encode_channels(x) : encode_whole(x);
    codes_of(message, chunk).copy_(codes);
    qparams_of(message, chunk).copy_(qparams.view({-1}).view(at::kByte));
  }

  void average(const MeanCall& call, const Segment& chunk, const std::vector<at::Tensor>& messages) override {
    const auto ranks = static_cast<int64_t>(messages.size());
    std::vector<at::Tensor> bytes;
    for (const at::Tensor& message : messages) {
      bytes.push_back(qparams_of(message, chunk));
    }
    // Anew, as floats cannot lie at any byte.
    const at::Tensor qparams = at::stack(bytes).view(at::kFloat).view({ranks, 2, -1});
    at::Tensor sum = at::zeros({chunk.numel}, call.array.options().dtype(at::kFloat));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      sum.add_(decode(codes_of(messages[rank], chunk), qparams[rank][0], qparams[rank][1]));
    }
    call.array.narrow(0, chunk.begin, chunk.numel).copy_(sum.div_(ranks));
  }

 private:
  using QparamsAndCodes = std::pair<at::Tensor, at::Tensor>;

  int64_t qparams_bytes(const Segment& chunk) const {
    return Channels{chunk.numel, channel_size_.value_or(std::numeric_limits<int64_t>::max())}.header_bytes();
  }

  static at::Tensor codes_of(const at::Tensor& message, const Segment& chunk) {
    return message.narrow(0, 0, chunk.numel);
  }
  at::Tensor qparams_of(const at::Tensor& message, const Segment& chunk) const {
    return message.narrow(0, chunk.numel, qparams_bytes(chunk));
  }

  static QparamsAndCodes encode_whole(const at::Tensor& x) {
    const auto [scale, zero_point] = choose_qparams_per_tensor(x);
    return {at::cat({scale, zero_point.to(at::kFloat)}), quantize_per_tensor(x, scale, zero_point)};
  }

  QparamsAndCodes encode_channels(const at::Tensor& x) const {
    const at::Tensor channels = in_channels(x, *channel_size_);
    const auto [scales, zero_points] = choose_qparams_per_channel(channels);
    const at::Tensor codes = quantize_per_channel(channels, scales, zero_points);
    return {at::stack({scales, zero_points.to(at::kFloat)}), codes.view({-1}).narrow(0, 0, x.numel())};
  }

  // float32 [numel]
  at::Tensor decode(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& zero_points) const {
    if (!channel_size_) {
      return dequantize_per_tensor(codes, scales, zero_points);
    }
    const at::Tensor channels = dequantize_per_channel(in_channels(codes, *channel_size_), scales, zero_points);
    return channels.view({-1}).narrow(0, 0, codes.numel());
  }

  const std::optional<int64_t> channel_size_;
};

}  // namespace

MeanCodecFactory affine_codec(std::optional<int64_t> channel_size) {
  return [=](at::Device device) -> std::unique_ptr<MeanCodec> {
    if (!device.is_cpu()) {
      return affine_codec_of_operators(channel_size);
    }
    if (!channel_size) {
      return std::make_unique<PerTensorCodec>();
    }
    return std::make_unique<PerChannelCodec>(*channel_size);
  };
}

int64_t affine_message_bytes(int64_t numel, int64_t channel_size) {
  return Channels{numel, channel_size}.header_bytes() + numel;
}

std::unique_ptr<MeanCodec> affine_codec_of_operators(std::optional<int64_t> channel_size) {
  return std::make_unique<OperatorsCodec>(channel_size);
}

}  // namespace narrowcast::collectives
