// Tests the emulation: collectives do what CUDA defines, and deadlocks and missing barriers are found.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/cuda_on_host/cuda_on_host.h"

namespace narrowcast::cuda_on_host {
namespace {

constexpr unsigned kAll = ~0U;

std::vector<int> range(int n) {
  std::vector<int> result(static_cast<size_t>(n));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

// The result of `body` in each lane of a warp, in both orders of turns.
template <class Body>
std::vector<int> lanes(const Body& body) {
  std::vector<int> forward(32);
  std::vector<int> backward(32);
  run_kernel({.turns = Turns::kForward}, [&] { forward[threadIdx.x] = body(static_cast<int>(threadIdx.x)); });
  run_kernel({.turns = Turns::kBackward}, [&] { backward[threadIdx.x] = body(static_cast<int>(threadIdx.x)); });
  EXPECT_EQ(forward, backward);
  return forward;
}

std::vector<int> expected(int (*value)(int)) {
  std::vector<int> result = range(32);
  for (int& lane : result) lane = value(lane);
  return result;
}

TEST(CudaOnHost, CallsTheKernelForEveryThreadOfEveryBlock) {
  std::vector<int> calls(3 * 64);
  run_kernel({.blocks = 3, .threads = 64}, [&] { ++calls[blockIdx.x * blockDim.x + threadIdx.x + gridDim.x - 3]; });
  EXPECT_EQ(calls, std::vector<int>(3 * 64, 1));
}

TEST(CudaOnHost, ShufflesAsCudaDoes) {
  EXPECT_EQ(lanes([](int i) { return __shfl_sync(kAll, i * 10, 7); }), std::vector<int>(32, 70));
  EXPECT_EQ(lanes([](int i) { return __shfl_sync(kAll, i, 2, 8); }), expected([](int i) { return i / 8 * 8 + 2; }));
  EXPECT_EQ(lanes([](int i) { return __shfl_xor_sync(kAll, i, 5); }), expected([](int i) { return i ^ 5; }));
  EXPECT_EQ(lanes([](int i) { return __shfl_down_sync(kAll, i, 4U); }),
            expected([](int i) { return i + 4 < 32 ? i + 4 : i; }));
  EXPECT_EQ(lanes([](int i) { return __shfl_down_sync(kAll, i, 1U, 8); }),
            expected([](int i) { return i % 8 == 7 ? i : i + 1; }));
  EXPECT_EQ(lanes([](int i) { return __shfl_up_sync(kAll, i, 3U); }),
            expected([](int i) { return i < 3 ? i : i - 3; }));
}

TEST(CudaOnHost, ReducesAndVotesAsCudaDoes) {
  EXPECT_EQ(lanes([](int i) { return __reduce_max_sync(kAll, i * 7 % 32); }), std::vector<int>(32, 31));
  EXPECT_EQ(lanes([](int i) { return __reduce_add_sync(kAll, i); }), std::vector<int>(32, 496));
  EXPECT_EQ(lanes([](int i) { return static_cast<int>(__ballot_sync(kAll, i % 2)); }),
            std::vector<int>(32, static_cast<int>(0xAAAAAAAAU)));
  EXPECT_EQ(lanes([](int i) { return __any_sync(kAll, i == 31) + 2 * __all_sync(kAll, i < 31); }),
            std::vector<int>(32, 1));
  EXPECT_EQ(__funnelshift_r(0x44332211U, 0x88776655U, 24), 0x77665544U);
}

// Several collectives in a row: no lane reads a value that another lane passed to the next one.
TEST(CudaOnHost, KeepsCollectivesApart) {
  const auto prefix_sum = [](int i) {
    int sum = i;
    for (unsigned step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(kAll, sum, step);
      if (threadIdx.x >= step) sum += below;
    }
    return sum;
  };
  EXPECT_EQ(lanes(prefix_sum), expected([](int i) { return i * (i + 1) / 2; }));
}

// Each thread reads a value that another warp wrote.
template <bool kWaits>
std::vector<int> rotate(Turns turns) {
  std::vector<int> out(128, -1);
  run_kernel({.threads = 128, .turns = turns}, [&] {
    __shared__ int shared[128];
    shared[threadIdx.x] = -1;
    __syncthreads();
    shared[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (kWaits) __syncthreads();
    out[threadIdx.x] = shared[(threadIdx.x + 40) % 128];
  });
  return out;
}

TEST(CudaOnHost, SynchronisesBlocks) {
  std::vector<int> rotated = range(128);
  std::rotate(rotated.begin(), rotated.begin() + 40, rotated.end());
  EXPECT_EQ(rotate<true>(Turns::kForward), rotated);
  EXPECT_EQ(rotate<true>(Turns::kBackward), rotated);
}

TEST(CudaOnHost, ShowsAMissingBarrier) {
  EXPECT_NE(rotate<false>(Turns::kForward), rotate<true>(Turns::kForward));
  EXPECT_NE(rotate<false>(Turns::kBackward), rotate<true>(Turns::kBackward));
}

template <class Kernel>
std::string refusal(const Kernel& kernel) {
  try {
    run_kernel({.threads = 64}, kernel);
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(CudaOnHost, FindsThreadsThatWaitInVain) {
  const std::string in_vain = ", where not all that it waits for will come";
  EXPECT_EQ(refusal([] {
              if (threadIdx.x != 35) __syncwarp();
            }),
            "thread 32 of block 0 waits at __syncwarp" + in_vain);
  EXPECT_EQ(refusal([] {
              if (threadIdx.x < 32) __syncthreads();
            }),
            "thread 0 of block 0 waits at __syncthreads" + in_vain);
  EXPECT_EQ(refusal([] { threadIdx.x % 2 == 0 ? __syncwarp() : static_cast<void>(__any_sync(kAll, 0)); }),
            "threads that must meet are at __syncwarp and at __ballot_sync");
}

TEST(CudaOnHost, CopiesWhenAThreadWaitsForIt) {
  const std::vector<int> from = range(32);
  std::vector<int> early(32);
  std::vector<int> late(32);
  run_kernel({}, [&] {
    __shared__ int shared[32];
    const unsigned i = threadIdx.x;
    shared[i] = -1;
    __pipeline_memcpy_async(&shared[i], &from[i], sizeof(int));
    __pipeline_commit();
    early[i] = shared[i];
    __pipeline_wait_prior(0);
    late[i] = shared[i];
  });
  EXPECT_EQ(early, std::vector<int>(32, -1));
  EXPECT_EQ(late, from);
  int shared = 0;
  EXPECT_EQ(refusal([&] { __pipeline_memcpy_async(&shared, from.data(), sizeof(int)); }),
            "thread 0 ends without waiting for a copy");
}

TEST(CudaOnHost, PassesOnWhatAThreadThrows) {
  EXPECT_EQ(refusal([] {
              if (threadIdx.x >= 40) throw std::logic_error("of thread " + std::to_string(threadIdx.x));
            }),
            "of thread 40");
}

TEST(CudaOnHost, RefusesPartsOfWarps) {
  EXPECT_THROW(run_kernel({.threads = 48}, [] {}), std::invalid_argument);
  EXPECT_THROW(run_kernel({}, [] { __syncwarp(0xFFU); }), std::invalid_argument);
}

}  // namespace
}  // namespace narrowcast::cuda_on_host
