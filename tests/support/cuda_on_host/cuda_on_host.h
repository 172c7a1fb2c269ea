// The keywords and functions of CUDA C++ that kernels use, for the host. Include it before the kernel's source and
// after everything else, and only in a test. run_kernel.h describes what such a test can find.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "tests/support/cuda_on_host/barrier.h"
#include "tests/support/cuda_on_host/run_kernel.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // Blocks run one after another, and each kernel has its own variables.

namespace narrowcast::cuda_on_host {

// The values of all lanes of the warp, once all have arrived. Kernels here always name the whole warp.
template <class T>
const LaneValues& exchange(const char* name, unsigned mask, T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  if (mask != ~0U) throw std::invalid_argument(std::string(name) + " must name all lanes of the warp");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return warp_barrier().arrive_and_wait(name, lane(), bits);
}

// The value that lane `lane` passed.
template <class T>
T value_of(const LaneValues& values, int64_t lane) {
  T value;
  std::memcpy(&value, &values[static_cast<size_t>(lane)], sizeof(value));
  return value;
}

// The value of lane `source`, or the calling lane's own if `source` is outside its segment of `width` lanes.
template <class T>
T shuffle(const char* name, unsigned mask, T value, int64_t source, int width) {
  const LaneValues& values = exchange(name, mask, value);
  return value_of<T>(values, source / width == lane() / width && source >= 0 ? source : lane());
}

// `fold` of the values of all lanes.
template <class T, class Fold>
T reduce(const char* name, unsigned mask, T value, Fold fold) {
  const LaneValues& values = exchange(name, mask, value);
  T result = value_of<T>(values, 0);
  for (int64_t i = 1; i < kWarpSize; ++i) result = fold(result, value_of<T>(values, i));
  return result;
}

}  // namespace narrowcast::cuda_on_host

inline void __syncthreads() {
  namespace host = narrowcast::cuda_on_host;
  host::block_barrier().arrive_and_wait("__syncthreads", host::thread_in_block(), 0);
}

inline void __syncwarp(unsigned mask = ~0U) { narrowcast::cuda_on_host::exchange("__syncwarp", mask, 0); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int64_t first = narrowcast::cuda_on_host::lane() / width * width;
  return narrowcast::cuda_on_host::shuffle("__shfl_sync", mask, value, first + source % width, width);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  return narrowcast::cuda_on_host::shuffle("__shfl_xor_sync", mask, value, narrowcast::cuda_on_host::lane() ^ bits,
                                           width);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  return narrowcast::cuda_on_host::shuffle("__shfl_down_sync", mask, value, narrowcast::cuda_on_host::lane() + lanes,
                                           width);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  return narrowcast::cuda_on_host::shuffle("__shfl_up_sync", mask, value, narrowcast::cuda_on_host::lane() - lanes,
                                           width);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const auto bit = static_cast<unsigned>(predicate != 0) << narrowcast::cuda_on_host::lane();
  return narrowcast::cuda_on_host::reduce("__ballot_sync", mask, bit, [](unsigned a, unsigned b) { return a | b; });
}

inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0 ? 1 : 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == ~0U ? 1 : 0; }

template <class T>
T __reduce_max_sync(unsigned mask, T value) {
  return narrowcast::cuda_on_host::reduce("__reduce_max_sync", mask, value, [](T a, T b) { return a > b ? a : b; });
}

template <class T>
T __reduce_add_sync(unsigned mask, T value) {
  return narrowcast::cuda_on_host::reduce("__reduce_add_sync", mask, value, [](T a, T b) { return a + b; });
}

// Asynchronous copies to shared memory (cuda_pipeline_primitives.h). They take place as late as allowed, so that a
// kernel that reads too early reads the old contents.
inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes) {
  narrowcast::cuda_on_host::pending_copies().push_back({to, from, bytes});
}

inline void __pipeline_commit() {}

inline void __pipeline_wait_prior(size_t batches) {
  if (batches != 0) throw std::invalid_argument("__pipeline_wait_prior must wait for all batches");
  for (const auto& copy : narrowcast::cuda_on_host::pending_copies()) std::memcpy(copy.to, copy.from, copy.bytes);
  narrowcast::cuda_on_host::pending_copies().clear();
}

// The low word of high:low shifted right by the low five bits of `shift`.
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift % 32));
}
