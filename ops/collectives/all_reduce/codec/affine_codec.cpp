#include "ops/collectives/all_reduce/codec/affine_codec.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/cpu/affine_uint8/affine_uint8_kernels.h"
#include "ops/operators/meta.h"

namespace narrowcast::collectives {
namespace {

using cpu::AffineQparams;

constexpr auto kQparamsBytes = static_cast<int64_t>(sizeof(AffineQparams));

// Encoding and decoding use a second thread from this number of elements on.
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

// The first chunk's message is the array's AffineQparams, then a code per element. Other messages have only the codes.
class PerTensorCodec final : public AllReduceCodec {
 public:
  int64_t grain() const override { return 64; }  // Cache lines.

  int64_t message_bytes(const ElementRange& chunk) const override { return header_bytes(chunk) + chunk.numel; }

  void encode(const AllReduceCall& call, const ElementRange& chunk, const at::Tensor& message) override {
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

  void average(const AllReduceCall& call, const ElementRange& chunk, const std::vector<at::Tensor>& messages) override {
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
  static int64_t header_bytes(const ElementRange& chunk) {
    return chunk.begin == 0 && chunk.numel > 0 ? kQparamsBytes : 0;
  }

  void read_headers(const std::vector<at::Tensor>& messages) {
    qparams_.resize(messages.size());
    for (size_t rank = 0; rank < messages.size(); ++rank) {
      std::memcpy(&qparams_[rank], messages[rank].const_data_ptr<uint8_t>(), kQparamsBytes);
    }
  }

  AffineQparams own_qparams_;
  std::vector<AffineQparams> qparams_;  // By rank.
};

// Fetches the pointers once per call, because a channel may have a single element.
std::vector<const uint8_t*> bytes_of(const std::vector<at::Tensor>& messages) {
  std::vector<const uint8_t*> bytes;
  for (const at::Tensor& message : messages) {
    bytes.push_back(message.const_data_ptr<uint8_t>());
  }
  return bytes;
}

// A chunk of `chunk_numel` elements in channels of `size`; the last channel may be shorter. PyTorch's reference hook
// pads it with zeros. The zeros are not sent: every channel's range includes zero anyway, and their mean is cut off.
struct Channels {
  int64_t chunk_numel;
  int64_t size;

  int64_t count() const { return chunk_numel / size + (chunk_numel % size > 0 ? 1 : 0); }
  int64_t numel(int64_t channel) const { return std::min(size, chunk_numel - channel * size); }
  int64_t header_bytes() const { return count() * kQparamsBytes; }
  int64_t grain() const { return std::max<int64_t>(1, kParallelGrain / size); }
};

// Message: the AffineQparams of the chunk's channels, then a code per element.
class PerChannelCodec final : public AllReduceCodec {
 public:
  explicit PerChannelCodec(int64_t channel_size) : channel_size_(channel_size) {}

  int64_t grain() const override { return channel_size_; }

  int64_t message_bytes(const ElementRange& chunk) const override {
    return affine_message_bytes(chunk.numel, channel_size_);
  }

  void encode(const AllReduceCall& call, const ElementRange& chunk, const at::Tensor& message) override {
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

  void average(const AllReduceCall& call, const ElementRange& chunk, const std::vector<at::Tensor>& messages) override {
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

}  // namespace

AllReduceCodecFactory affine_codec(std::optional<int64_t> channel_size) {
  return [=](at::Device device) -> std::unique_ptr<AllReduceCodec> {
    if (!device.is_cpu()) {
      return gpu::affine_codec(channel_size);
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

}  // namespace narrowcast::collectives
