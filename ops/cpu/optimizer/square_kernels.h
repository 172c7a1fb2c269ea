// Sums of squares of float32 that have the same bits in every order.
//
// Squares are rounded to multiples of a unit u, a power of two that follows from the greatest magnitude of all numbers,
// and the multiples are added as integers. Additions are therefore exact: parts of the numbers may be summed anywhere
// and in any order.
#pragma once

#include <cstdint>

namespace narrowcast::cpu {

// A number of units, 0 <= high * 2^64 + low < 2^128. A square is less than 2^52 units, so that a sum of less than 2^76
// squares does not overflow.
struct SquareSum {
  uint64_t low = 0;
  uint64_t high = 0;

  void add(uint64_t units) {
    low += units;
    high += low < units ? 1 : 0;
  }
  void add(const SquareSum& other) {
    add(other.low);
    high += other.high;
  }
  bool operator==(const SquareSum&) const = default;
};

// u for numbers up to `greatest`, which is finite and not 0: 2^(2 k - 50) with 2^k <= greatest < 2^(k + 1).
double square_unit(float greatest);

// The sum over x[0..n) of the squares, each rounded to a multiple of `unit`, half to even. unit is square_unit of a
// number that is at least the greatest magnitude of x. x needs no alignment, and may be null if n is 0. Runs on the
// calling thread; the instruction set is chosen at run time, and all give the same sum.
SquareSum sum_squares(const float* x, int64_t n, double unit);

}  // namespace narrowcast::cpu
