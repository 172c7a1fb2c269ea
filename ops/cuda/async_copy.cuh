// Copies from device memory to shared memory without registers in between. A .cu
// file includes <cuda_pipeline_primitives.h> first, a test on the host
// tests/support/cuda_on_host/cuda_on_host.h.
#pragma once

#include "ops/cuda/vector_access.cuh"

namespace narrowcast::cuda {

// Copies a vector. The thread has it after __pipeline_commit and __pipeline_wait_prior, others after a barrier behind
// that.
template <class Vector>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  NARROWCAST_DEVICE_CHECK(is_aligned<Vector>(shared) && is_aligned<Vector>(global));
  __pipeline_memcpy_async(shared, global, sizeof(Vector));
}

}  // namespace narrowcast::cuda
