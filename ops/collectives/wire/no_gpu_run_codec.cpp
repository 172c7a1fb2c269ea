// A build without CUDA has no kernels for CUDA tensors.
#include <c10/util/Exception.h>

#include "ops/collectives/wire/gpu_run_codec.h"

namespace narrowcast::collectives::gpu {
namespace {

[[noreturn]] void refuse() { TORCH_CHECK(false, "narrowcast is built without CUDA"); }

}  // namespace

void encode_run(const WireCoding&, const ArrayRun&, uint8_t*) { refuse(); }

void decode_run(WireFormat, const uint8_t*, const ArrayRun&) { refuse(); }

void average_runs(WireFormat, const RankMessages&, const ArrayRun&) { refuse(); }

void average_and_encode_runs(const WireCoding&, const RankMessages&, const ArrayRun&, float*, uint8_t*) { refuse(); }

}  // namespace narrowcast::collectives::gpu
