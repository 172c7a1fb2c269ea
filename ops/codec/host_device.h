// NARROWCAST_HOST_DEVICE marks a function that CPU code and CUDA kernels share.
#pragma once

#if defined(__CUDACC__)
#define NARROWCAST_HOST_DEVICE __host__ __device__
#else
#define NARROWCAST_HOST_DEVICE
#endif
