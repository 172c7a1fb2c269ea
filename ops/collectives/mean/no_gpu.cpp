// A build without CUDA has no kernels for CUDA tensors, and nothing that moves them.
#include <c10/util/Exception.h>

#include "ops/collectives/mean/affine_codec.h"
#include "ops/collectives/mean/segment_codec.h"
#include "ops/collectives/mean/stream_groups.h"

namespace narrowcast::collectives::gpu {
namespace {

[[noreturn]] void refuse() { TORCH_CHECK(false, "narrowcast is built without CUDA"); }

}  // namespace

void encode_shards(const WireCoding&, const ArraySegment&, const ShardSlots&, uint8_t*) { refuse(); }

void decode_shards(WireFormat, const uint8_t*, const ShardSlots&, const ArraySegment&) { refuse(); }

void average_segments(WireFormat, const RankMessages&, const ArraySegment&) { refuse(); }

void average_and_encode_segments(const WireCoding&, const RankMessages&, const ArraySegment&, float*, uint8_t*) {
  refuse();
}

std::unique_ptr<MeanCodec> affine_codec(std::optional<int64_t>) { refuse(); }

MakeGroup group_maker(const c10::intrusive_ptr<c10d::ProcessGroup>&) { return nullptr; }

}  // namespace narrowcast::collectives::gpu
