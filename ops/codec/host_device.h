// Basics of code for host and device: the mark of its functions, float32's bits, division by a reciprocal.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// Marks a function that CPU code and CUDA kernels share.
#if defined(__CUDACC__)
#define NARROWCAST_HOST_DEVICE __host__ __device__
#else
#define NARROWCAST_HOST_DEVICE
#endif

// Precedes a template for CPU and GPU that calls its caller's function: nvcc then does not check on which side that
// function can run.
#if defined(__CUDACC__)
#define NARROWCAST_CALLS_ANY_SIDE _Pragma("nv_exec_check_disable")
#else
#define NARROWCAST_CALLS_ANY_SIDE
#endif

namespace narrowcast::codec {

inline constexpr uint32_t kSignBit = 0x80000000U;
inline constexpr uint32_t kInfBits = 0x7F800000U;
inline constexpr uint32_t kQuietNanBits = 0x7FC00000U;

NARROWCAST_HOST_DEVICE inline uint32_t float_bits(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

NARROWCAST_HOST_DEVICE inline float float_of_bits(uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// The bits of |x|. Their order is the order of magnitudes; Inf and then NaN are above all numbers.
NARROWCAST_HOST_DEVICE inline uint32_t magnitude_bits(float x) { return float_bits(x) & ~kSignBit; }

// Many quotients by one float32. Each is correctly rounded, as a division is, and takes five multiplications and
// additions.
//
// q0 = x * r, with r = RN(1 / divisor), is off by less than two units in the last place. Each step q + r * (x - q *
// divisor), where the fused multiply-add gives the exact remainder, first reduces the error to one unit and then gives
// the correctly rounded quotient. Source: P. Markstein, "Computation of elementary functions on the IBM RISC
// System/6000 processor", IBM J. Res. Dev. 34 (1990), theorem 8.2.
class ReciprocalDivision {
 public:
  // Needs is_moderate(divisor).
  NARROWCAST_HOST_DEVICE explicit ReciprocalDivision(float divisor) : divisor_(divisor), reciprocal_(1.0F / divisor) {}

  // Whether no remainder that matters here can underflow and no correction can overflow. False for 0, Inf and NaN.
  NARROWCAST_HOST_DEVICE static bool is_moderate(float divisor) { return divisor >= 0x1p-60F && divisor <= 0x1p60F; }

  // magnitude of x / divisor   quotient(x)
  // [2^-2, 2^20]               RN(x / divisor)
  // less                       a magnitude below 2^-1
  // more                       a magnitude above 2^19
  // Inf or NaN                 the same
  NARROWCAST_HOST_DEVICE float quotient(float x) const {
    const float estimate = x * reciprocal_;
    const float close = correct(x, estimate);
    const float exact = correct(x, close);
    return std::fabs(estimate) < 0x1p20F ? exact : estimate;  // False for Inf and NaN.
  }

 private:
  NARROWCAST_HOST_DEVICE float correct(float x, float quotient) const {
    return std::fma(std::fma(-quotient, divisor_, x), reciprocal_, quotient);
  }

  float divisor_;
  float reciprocal_;
};

}  // namespace narrowcast::codec
