// Stubs for a build without CUDA: no kernels for CUDA tensors and no collectives on them.
#include <c10/util/Exception.h>

#include "ops/collectives/all_reduce/codec/affine_codec.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/collectives/all_reduce/stream/stream_groups.h"

namespace narrowcast::collectives::gpu {
namespace {

[[noreturn]] void refuse() { TORCH_CHECK(false, "narrowcast is built without CUDA"); }

}  // namespace

std::unique_ptr<const WireCodec> make_wire_codec(WireFormat) { refuse(); }

std::unique_ptr<AllReduceCodec> affine_codec(std::optional<int64_t>) { refuse(); }

MakeGroup group_maker(const c10::intrusive_ptr<c10d::ProcessGroup>&) { return nullptr; }

}  // namespace narrowcast::collectives::gpu
