#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "ops/collectives/wire/gpu_run_codec.h"
#include "ops/cuda/float_type_of.h"
#include "ops/cuda/wire/wire_kernels.h"

namespace narrowcast::collectives::gpu {
namespace {

cuda::FloatType type_of(const ArrayRun& run) { return cuda::float_type_of(run.array.scalar_type()); }

void* elements_of(const ArrayRun& run) {
  return static_cast<uint8_t*>(run.array.mutable_data_ptr()) + run.run.begin * run.array.element_size();
}

cuda::RankParts parts_of(const RankMessages& messages, const ArrayRun& run) {
  const auto ranks = static_cast<int64_t>(messages.size());
  TORCH_CHECK_VALUE(ranks <= cuda::kMaxRanks, "a mean on a GPU is of at most ", cuda::kMaxRanks, " ranks, not of ",
                    ranks);
  cuda::RankParts parts{.ranks = ranks,
                        .own_rank = std::find(messages.begin(), messages.end(), nullptr) - messages.begin(),
                        .type = type_of(run),
                        .own = elements_of(run),
                        .n = run.run.numel};
  std::copy(messages.begin(), messages.end(), parts.messages);
  return parts;
}

}  // namespace

void encode_run(const WireCoding& coding, const ArrayRun& run, uint8_t* message) {
  const c10::cuda::CUDAGuard guard(run.array.device());
  cuda::wire_encode(coding.format,
                    {.type = type_of(run),
                     .x = elements_of(run),
                     .n = run.run.numel,
                     .residual = run.residual,
                     .rounding = coding.rounding,
                     .message = message},
                    c10::cuda::getCurrentCUDAStream());
}

void decode_run(WireFormat format, const uint8_t* message, const ArrayRun& run) {
  const c10::cuda::CUDAGuard guard(run.array.device());
  cuda::wire_decode(format, {.message = message, .n = run.run.numel, .type = type_of(run), .out = elements_of(run)},
                    c10::cuda::getCurrentCUDAStream());
}

void average_runs(WireFormat format, const RankMessages& messages, const ArrayRun& run) {
  const c10::cuda::CUDAGuard guard(run.array.device());
  cuda::wire_average(format, {.parts = parts_of(messages, run), .mean = elements_of(run)},
                     c10::cuda::getCurrentCUDAStream());
}

void average_and_encode_runs(const WireCoding& coding, const RankMessages& messages, const ArrayRun& run,
                             float* mean_residual, uint8_t* message) {
  const c10::cuda::CUDAGuard guard(run.array.device());
  cuda::AverageEncodeArguments arguments{.parts = parts_of(messages, run),
                                         .mean_residual = mean_residual,
                                         .rounding = coding.rounding,
                                         .message = message};
  arguments.parts.own_residual = run.residual;
  cuda::wire_average_encode(coding.format, arguments, c10::cuda::getCurrentCUDAStream());
}

}  // namespace narrowcast::collectives::gpu
