// CUDA's built-in types and variables, for the host.
#pragma once

struct uint3 {
  unsigned x, y, z;
};

struct alignas(8) uint2 {
  unsigned x, y;
};

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

struct alignas(8) float2 {
  float x, y;
};

struct alignas(16) float4 {
  float x, y, z, w;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// Of the thread that runs. Kernels have one dimension.
inline uint3 threadIdx = {0, 0, 0};
inline uint3 blockIdx = {0, 0, 0};
inline dim3 blockDim;
inline dim3 gridDim;
