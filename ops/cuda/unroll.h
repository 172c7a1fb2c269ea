// NARROWCAST_UNROLL before a loop of a known, small number of turns has nvcc write each turn out, so that arrays which
// it indexes can be registers.
#pragma once

#if defined(__CUDA_ARCH__)
#define NARROWCAST_UNROLL _Pragma("unroll")
#else
#define NARROWCAST_UNROLL
#endif
